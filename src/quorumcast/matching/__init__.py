"""Predicates on the events of a channel: what matches, and results that brokers can vote on."""
