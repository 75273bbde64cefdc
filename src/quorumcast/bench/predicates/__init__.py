"""Workloads whose subscriptions are predicates, replayed by real processes."""
