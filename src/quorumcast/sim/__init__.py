"""The deterministic world: clock, network, disks, adversaries, checkers, scenarios."""
