"""Links between nodes: sockets, TLS, greetings, and fair shares for every peer."""
