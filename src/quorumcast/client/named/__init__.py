"""Named subscriptions: consumers that share the work, and what the cell keeps of it."""
