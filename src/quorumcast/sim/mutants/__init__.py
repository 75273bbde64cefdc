"""Mutation testing of production code by simulation.

A *mistake* (a mutant) is data: a snippet of one source file and its replacement
(`catalogue/<room>.toml`). A worker process compiles the module with the replacement and runs drawn
scenarios until a checker reports a violation. The same scenario on the unchanged code must be
clean; otherwise the catch proves nothing. `run` tries the catalogue and the known-bad variants in
rounds: few scenarios for every mistake first, more for the survivors.
"""
