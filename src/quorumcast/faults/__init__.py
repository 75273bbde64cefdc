"""The catalogue of misbehaviour, shared by the simulator, the fault console and the tests."""
