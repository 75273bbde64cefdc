"""Digests, MACs, identities, sealed sessions, signed statements."""
