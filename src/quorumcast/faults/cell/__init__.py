"""The faults of a cell: brokers, publishers and subscribers that misbehave."""
