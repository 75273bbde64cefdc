"""`quorumcast pipeline …`: jobs that run on Spark; each command in a module of its own."""
