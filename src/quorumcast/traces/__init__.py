"""Traces: what every node sent and accepted, and when, in a form that programs read later."""
