"""The broker of a cell: streams and their protocols, subscribers, logs, recovery, epochs."""
