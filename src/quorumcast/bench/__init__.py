"""Measurements of whole cells: real broker, publisher and subscriber processes on this machine."""
