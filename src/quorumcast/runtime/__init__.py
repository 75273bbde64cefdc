"""The world around the machines: sockets, timers, disk, signals, metrics."""
