"""The manifest of a cell: members, keys, channels, policies and rights."""
