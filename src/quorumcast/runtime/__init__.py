"""Runs machines in processes: sockets, timers, disk, signals, metrics."""
