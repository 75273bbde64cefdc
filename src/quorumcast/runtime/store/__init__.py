"""A store for the records of a machine: one SQLite file, one commit per turn of the event loop."""
