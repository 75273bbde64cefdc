"""Commands of operators: a cell, its brokers, members, channels and epochs."""
