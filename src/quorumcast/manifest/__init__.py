"""Who is in the cell, with which keys, on which channels, under which promises."""
