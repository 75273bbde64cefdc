"""Quorumcast and Spark: verified streams in and out, and the jobs around them.

Needs the extra `quorumcast[spark]`. Rooms below know nothing of Spark.
"""
