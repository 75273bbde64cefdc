"""The system *cell* in the simulator: how it is drawn, assembled, attacked and judged."""
