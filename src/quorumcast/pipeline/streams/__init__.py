"""`format("quorumcast")`: verified streams in and out of Spark."""
