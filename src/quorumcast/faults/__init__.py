"""Misbehaviour: what a fault is, the faults of each system, and who must be lying."""
