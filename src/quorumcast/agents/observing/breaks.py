"""Breaks: where a publisher's chain broke, in the words of a row.

A publisher knows among which brokers of its chain the culprit is (`ChainOut`), if all of them were
there and nothing got lost. Their names, in the order of the chain, stand in place of a message.
"""

from __future__ import annotations

from quorumcast.agents.observing.turnout import STILL_MS, Links
from quorumcast.core.ids import Millis
from quorumcast.core.machine import Suspect

#: What follows the name of a broker that has not been heard for a while: it may stand still.
QUIET = "?"


def culprits(links: Links, broken: Suspect, now: Millis) -> str:
    """Among whom the culprit is; nobody if that cannot be said.

    While packets of anybody get lost, those between brokers may as well, and that we do not see.
    """
    if not links.calm(now) or not all(links.settled(broker, now) for broker in broken.among):
        return ""
    still = {b for b in broken.among if now - links.heard_at.get(b, 0) >= STILL_MS}
    return " ".join(b + QUIET if b in still else b for b in broken.among)
