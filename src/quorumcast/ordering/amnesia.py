"""Amnesia: a broker that starts without any record may have voted in an earlier life.

It first *listens* to so many others (`OrderQuorums.recall`) that any quorum which counted on its
votes has a correct broker among them. Then it is enough to take no part in the instances that they
have heard of: this broker is *blind* up to there. Where brokers lie, only what f+1 of them have
heard of counts: otherwise one liar that claims to be far ahead would, when a log begins, keep
everybody out of the first instances for ever.

Others can often tell whether it forgot at all: they have seen it past listening before. A broker of
which nobody says so waits for n-f brokers, itself among them; otherwise a cell of which f never
came could not begin.

When a log begins everybody listens and nobody has heard of anything. A leader proposes only once
n-f brokers are past listening: if more than f heard of an instance too late, too few would be left
to decide it. It waits a little for the others as well (`GATHER_MS`): a distant one would come too
late, and be missed as soon as f of those that came have crashed.

More than f may come too late all the same, if one that seemed to be awake has died or lies. So
where brokers may lie, a blind one takes part after a while in which nothing was decided: a broker
that did forget is then one of the f whose lies do no harm. Where brokers only crash, no f covers a
broker that contradicts itself, and a blind one stays out.
"""

from __future__ import annotations

from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.limits import MAX_NUMBER
from quorumcast.core.quorum import OrderQuorums
from quorumcast.core.tally import reached_by
from quorumcast.ordering.checkpoints import CatchUp
from quorumcast.ordering.consensus import Consensus
from quorumcast.ordering.messages import Standing

#: How long nothing may be decided before a blind broker takes part.
BLIND_MS = 3000
#: How long a leader waits for brokers that have not come yet, once it could do without them.
GATHER_MS = 500


class AmnesiaGuard:
    """Whether a broker may take part yet."""

    __slots__ = (
        "_awake",
        "_begun",
        "_catch_up",
        "_consensus",
        "_enough_since",
        "_me",
        "_quorums",
        "_stuck",
        "listening",
        "regency",
    )

    def __init__(
        self, me: NodeId, quorums: OrderQuorums, consensus: Consensus, catch_up: CatchUp
    ) -> None:
        self._me = me
        self._quorums = quorums
        self._consensus = consensus
        self._catch_up = catch_up
        #: Whether it still listens; it takes no part in anything meanwhile.
        self.listening = True
        consensus.blind = MAX_NUMBER
        #: Whether enough brokers were seen to be past that.
        self._begun = False
        #: Since when there are enough, if all of them are not there.
        self._enough_since: Millis | None = None
        #: Members that were ever seen to be past that; never more than there are.
        self._awake: dict[NodeId, None] = {}
        #: How far decisions were, and since when.
        self._stuck = (-1, Millis(0))
        #: The regency that the others were in when it had listened.
        self.regency = 0

    def _others(self) -> list[Standing]:
        return [s for member, s in self._catch_up.standings.items() if member != self._me]

    @property
    def awake(self) -> tuple[NodeId, ...]:
        """Members that were past listening when this broker heard from them."""
        return tuple(self._awake)

    def may_lead(self, now: Millis) -> bool:
        """Whether enough brokers are past listening for a leader to propose."""
        if not self._begun and not self.listening:
            awake = sum(not standing.fresh for standing in self._others())
            if awake < self._quorums.responders - 1:
                return False
            if self._enough_since is None:
                self._enough_since = now
            all_came = awake == len(self._consensus.members) - 1
            self._begun = all_came or now - self._enough_since >= GATHER_MS
        return self._begun

    def listen(self) -> bool:
        """Whether enough has just been heard."""
        others = self._others()
        for member, standing in self._catch_up.standings.items():
            if not standing.fresh and member != self._me:
                self._awake[member] = None
        forgot = any(self._me in standing.awake for standing in others)
        needed = self._quorums.recall if forgot else self._quorums.responders - 1
        if not self.listening or len(others) < needed:
            return False
        self.listening = False
        believe = min(self._quorums.believe, len(others))
        self._consensus.blind = reached_by((standing.heard for standing in others), believe)
        self.regency = reached_by((standing.regency for standing in others), believe)
        return True

    def remember(self) -> None:
        """The disk knows what this broker did: it need not listen."""
        self.listening = False
        self._consensus.blind = 0

    def follow(self, before: AmnesiaGuard) -> None:
        """Go on after an earlier epoch: what this broker does in the new one it remembers."""
        if not before.listening:
            self.remember()
        members = self._consensus.members
        self._awake = {member: None for member in before.awake if member in members}

    def maybe_take_part(self, now: Millis) -> None:
        """Take part although blind, if nothing goes on without this broker."""
        consensus = self._consensus
        if self.listening:
            return
        self.may_lead(now)  # a later leader need not begin to wait then
        decided, since = self._stuck
        if decided != consensus.decided:
            self._stuck = (consensus.decided, now)
        elif self._quorums.byzantine and decided < consensus.blind and now - since > BLIND_MS:
            consensus.blind = decided
