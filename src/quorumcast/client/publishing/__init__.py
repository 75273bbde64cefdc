"""The publishing role of a node: publishers, and what they make of events."""
