"""Every number that the audit judges by, with its reason.

Times are those of the protocols: something counts as never said after `PATIENCE_MS`
(`watch.turnout`), the longest patience of a broker (`ordering.patience`). How often
single observations must have been made stands beside each rule (`charges.RULES`). What is below
these numbers happens to correct nodes; what is above does not.
"""

from __future__ import annotations

#: So many, and this share of what was due: losses that no sequence number shows are fewer.
LEAST, LEAST_SHARE = 5, 0.12
#: Enough of what nothing ever came of, and of requests: each of them is asked again and again.
NEVER, IN_VAIN = 3, 2
#: A part of the run counts if so much was due in it; one thing says little.
DUE = 2
#: A node that stands still fails in few parts of a run, a liar in most of them.
MOST_SLOTS, LEAST_SLOTS = 0.8, 3
#: A node that does some things and not others in the same parts does not stand still.
MANY_SLOTS = 0.66
#: If the others fail with this share of what the accused fails with, it is the weather.
USUAL = 0.4
#: A median of fewer things says nothing.
TIMED_AT_LEAST = 10
