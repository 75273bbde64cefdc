"""A broker as a process: its machine, links, store, status page and signals."""
