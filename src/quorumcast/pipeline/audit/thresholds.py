"""The thresholds of the audit. Correct nodes stay below them.

The times are those of the protocols: a message is missing after `watch.turnout.OVERDUE_MS`, the
longest leader timeout. The least counts of single rules stand in `charges.RULES`.
"""

from __future__ import annotations

#: Least number and share of missing messages. Losses that no sequence number reveals are fewer.
MIN_MISSING, MIN_MISSING_SHARE = 5, 0.12
#: Least number if the message is always owed, or if none ever came.
MIN_MISSING_CERTAIN = 3
#: Least number of unanswered requests; each of them is repeated many times.
MIN_UNANSWERED = 2
#: A part of the run counts if this many messages were due in it.
MIN_DUE_IN_SLOT = 2
#: A paused node fails in few parts of a run, a faulty one in this share of them.
STEADY_SHARE, MIN_SLOTS = 0.8, 3
#: The share for a node that sends some messages and omits others in the same parts: not a pause.
STEADY_SHARE_MIXED = 0.66
#: If others miss more than this share of what the accused misses, the network is to blame.
MAX_OTHERS_SHARE = 0.4
#: Least number of messages for a median lateness.
MIN_TIMED = 10
