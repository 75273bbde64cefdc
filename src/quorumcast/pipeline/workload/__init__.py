"""Workloads on Spark: prepared from data sets, generated in known shapes, described and checked."""
