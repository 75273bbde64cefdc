"""Misbehaviour: the contract of a fault, the faults of each system, and the search for liars."""
