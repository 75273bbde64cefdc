"""What a machine asked to keep: one SQLite file, one commit per turn of the loop."""
