"""Protocol coverage: states and transitions that scenarios reach, and coverage-guided seeds."""
