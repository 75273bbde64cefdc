"""Commands of publishers, subscribers and those who verify."""
