"""Named subscriptions: replicated consumer state, computed from a totally ordered channel."""
