"""The ingredients of a drawn run, one room for each: `scenario` puts them together."""
