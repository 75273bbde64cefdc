"""Publisher, broker and subscriber: machines composed from the protocols by channel policy."""

#: The name of this system in plans, traces and on the command line.
CELL_SYSTEM = "cell"
