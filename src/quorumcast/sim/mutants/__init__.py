"""Single mistakes in production code, and whether drawn scenarios notice them.

A *mistake* is data: a snippet of one source file and what stands there instead
(`catalogue/<room>.toml`). A worker process compiles the module with the replacement
(`planting`, `worker`) and runs drawn scenarios until a checker reports a violation. The
same scenario on the code as it is must be clean, or the catch proves nothing. `run` goes
through the catalogue and the known-bad variants in rounds: few scenarios for every mistake
first, more for those that are left.
"""
