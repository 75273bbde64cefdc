"""Observers: one beside each machine, noting what its peers do. The audit judges their notes."""
