"""Commands for trees of cells."""
