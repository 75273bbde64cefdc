"""Named subscriptions: what consumers agree on by writing it into a total order of their own."""
