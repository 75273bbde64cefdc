"""Many filters at once: an index over their predicates, and a set of them that changes."""
