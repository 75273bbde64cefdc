"""Ports that no other worker chooses at the same time.

A port that was chosen looks free to everybody else until a broker listens there.
"""

import os

#: More than anybody has workers.
SETS = 10
#: Brokers of a cell that the command line made: as many ports in a row.
IN_A_ROW = 4

_SET = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % SETS
SINGLE = range(15_000 + _SET, 24_000, SETS)
#: The first port of each row; a thousand above, where status pages are, rows are ours as well.
ROWS = range(24_000 + IN_A_ROW * _SET, 30_000, IN_A_ROW * SETS)
