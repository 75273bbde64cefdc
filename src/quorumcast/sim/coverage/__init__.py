"""Which protocol states scenarios reach, which they never reach, and seeds steered by that."""
