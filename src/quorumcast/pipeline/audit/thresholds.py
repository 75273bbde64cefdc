"""Every number that the audit judges by, with its reason.

Times are those of the protocols: something counts as never said after `PATIENCE_MS`
(`agents.observing.turnout`), the longest patience of a broker (`ordering.patience`). How often
single observations must have been made stands beside each rule (`charges.RULES`). What is below
these numbers happens to correct nodes; what is above does not.
"""

from __future__ import annotations

from quorumcast.agents.observing.inquiries import AGAIN

# How certain a charge is.
#: A forbidden deed seen so often happened: once may be a bit that flipped in a log.
SURE = 3
#: One witness is enough for so much, and this share: a bad line loses less.
STRONG, STRONG_SHARE = 20, 0.3

# What never came.
#: So many, and this share of what was due: losses that no sequence number shows are fewer.
LEAST, LEAST_SHARE = 5, 0.12
#: A part of the run counts if so much was due in it; one thing says little.
DUE = 2
#: Somebody that stands still fails in few parts of a run, a liar in most of them.
MOST_SLOTS, LEAST_SLOTS = 0.8, 3
#: A node that does some things and not others in the same parts does not stand still.
MANY_SLOTS = 0.66
#: If the others fail with this share of what the accused fails with, it is the weather.
USUAL = 0.4
#: Enough of what nothing ever came of, or two of it if several miss it.
NEVER, FEWEST = 3, 2
#: Count and share of votes, each of which is enough for two witnesses, and how many in all: it was
#: no single moment.
MUCH, MUCH_IN_ALL = ((10, STRONG_SHARE), (3, 0.75), (2, 1.0)), 6
#: Echoes and readies are repeated whatever gets lost: one may be on its way when the run ends.
CERTAIN_LEAST = 2
#: Proposals that nobody could hand over; one may have got lost together with its offer.
UNFETCHED = 3
#: Where packets get lost, by message: count, share of what came, parts of the run. A single lost
#: packet may have held several things.
MENDED_LEAST = {
    "Pull": (2, 0.0, 1),
    "Offer": (3, 0.02, 2),
    "Publish": (3, 0.02, 2),
    "History": (3, 0.0, 1),
}

# Requests.
#: Publishers repeat this one until it is answered.
UNTIL_ANSWERED = "Open"
#: Requests that a correct node answers, and how many in vain are enough where packets get lost.
ANSWERABLE = {"Subscribe": 5, "Survey": 2, UNTIL_ANSWERED: 5}
#: Where nothing gets lost: in vain, and of one channel in vain while another is answered.
IN_VAIN, CENSORED = 2, 1
#: So often more in vain than not.
MOSTLY = 3
#: How often was asked at least what nothing got lost of.
TRIES = {"": 1, AGAIN: 2}
#: So often in vain towards one observer, beside LEAST in all.
NOT_ANSWERED = 2
#: Contents in vain of a broker that voted for them: it may have let go of one.
WITHHELD = 2
#: Signatures in vain of a broker that never signs: segments take a while to fill.
UNSIGNED = 10

# Gaps, chains, silence, faces.
#: Gaps, by message: one or two are left by catching up in another way.
SKIPPED = {"Vote": 3, "ChainRun": 3, "Propose": 2, "Publish": 3}
#: Runs of a publisher that do not follow each other: count, and share of what was published.
OUT_OF_TURN = (15, 0.5)
#: Chains of one publisher that broke at one broker, or of all publishers.
BREAKS, BREAKS_IN_ALL = 4, 6
#: Different neighbours from which a broker kept what it took: the line to one may be bad.
KEPT_FROM = 2
#: Silence until the end of the run, and its share of the run: others stand still for a while.
SILENT_MS, SILENT_SHARE = 1000, 0.25
#: Runs that a broker echoed differently to the same two.
ECHOED_DIFFERENTLY = 2

# Measurements.
#: A median of fewer things says nothing.
TIMED_AT_LEAST = 10
