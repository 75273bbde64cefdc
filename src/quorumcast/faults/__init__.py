"""The catalogue of misbehaviour, what was done and who may be behind it.

Shared by the simulator, real runs, the fault console, the audit and the tests.
"""
