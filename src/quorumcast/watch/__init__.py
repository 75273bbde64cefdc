"""The observer of a node: what it notices of its peers. The audit judges by what it notes."""
