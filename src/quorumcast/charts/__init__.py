"""Charts and pages of figures, as text: for the benchmark and for the evaluation of traces."""
