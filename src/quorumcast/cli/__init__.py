"""The command line `quorumcast`."""
