"""Simulator campaigns on Spark: runs many seeds and shrinks the failures."""
