"""The client side of named subscriptions (consumer groups)."""
