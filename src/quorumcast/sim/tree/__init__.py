"""Trees of cells: each broker of a child cell relays what it accepts from the parent cell."""

#: The name of the system.
TREE_SYSTEM = "tree"
