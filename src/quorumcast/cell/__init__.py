"""Publisher, broker and subscriber: machines composed from the protocols by channel policy."""
