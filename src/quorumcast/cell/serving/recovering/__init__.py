"""State transfer of channels without total order: brokers get back from peers what they lack."""
