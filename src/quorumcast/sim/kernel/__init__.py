"""Virtual time, a network with weather, disks, nodes: what every simulated system needs."""
