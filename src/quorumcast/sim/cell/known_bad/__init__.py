"""Mistakes put in on purpose, each with the property that must be seen broken."""
