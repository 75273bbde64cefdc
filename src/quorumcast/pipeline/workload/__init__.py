"""Workloads made on Spark: prepared from data sets or generated, described and checked."""
