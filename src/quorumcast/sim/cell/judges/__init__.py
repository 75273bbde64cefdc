"""Checkers of a cell: what must hold, judged from outside the machines."""
