"""Commands that try and measure: the simulator, the benchmark, the demonstration."""
