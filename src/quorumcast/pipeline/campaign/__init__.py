"""Campaigns on Spark: the simulator's seeds spread over tasks, failures made small."""
