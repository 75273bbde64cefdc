"""The caution of a broker that starts without any record: it may have voted in an earlier life.

It listens to so many others first (`OrderQuorums.recall`) that any quorum which counted on its
votes has a correct broker among them, so it is enough to take no part in the instances that they
have heard of: this broker is *blind* up to there. Only what f+1 of them have heard of counts where
brokers lie: at the beginning of the world one liar that claims to be far ahead would otherwise keep
everybody out of the first instances for ever.

Whether it forgot at all, others can often tell: they have seen it past listening before. One of
whom nobody says so is content with n-f brokers, itself among them, or a cell of which f never came
could not begin.

At the beginning of the world everybody listens and nobody has heard of anything. A leader proposes
only once n-f brokers are past listening: more than f that come to hear of an instance too late
would leave too few to decide it. It waits a little for the others as well (`GATHER_MS`): one that
is far away would come too late, and be missed as soon as f of those that came have crashed.

More than f may come too late all the same, if one that seemed to be awake has died or lies: so
where brokers may lie, one that is blind relents after a while in which nothing was decided. Whoever
did forget is then one of the f whose lies do no harm. Where brokers only crash nobody is covered
who contradicts itself, and a blind one stays out.
"""

from __future__ import annotations

from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.limits import MAX_NUMBER
from quorumcast.core.quorum import OrderQuorums
from quorumcast.ordering.catchup import CatchUp
from quorumcast.ordering.consensus import Consensus
from quorumcast.ordering.execution import LogContext
from quorumcast.ordering.messages import Standing

#: How long nothing may be decided before a blind broker takes part.
RELENT_MS = 3000
#: How long a leader waits for brokers that have not come yet, once it could do without them.
GATHER_MS = 500


class Caution:
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
        "fresh",
        "regency",
    )

    def __init__(
        self,
        around: LogContext,
        quorums: OrderQuorums,
        consensus: Consensus,
        catch_up: CatchUp,
    ) -> None:
        self._me = around.me
        self._quorums = quorums
        self._consensus = consensus
        self._catch_up = catch_up
        #: Whether it still listens; it takes no part in anything meanwhile.
        self.fresh = True
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

    def _note_awake(self) -> None:
        for member, standing in self._catch_up.standings.items():
            if not standing.fresh and member != self._me:
                self._awake[member] = None

    def quorate(self, now: Millis) -> bool:
        """Whether a leader may propose."""
        if not self._begun and not self.fresh:
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
        self._note_awake()
        forgot = any(self._me in standing.awake for standing in others)
        needed = self._quorums.recall if forgot else self._quorums.responders - 1
        if not self.fresh or len(others) < needed:
            return False
        self.fresh = False
        self._consensus.blind = self._believed([standing.heard for standing in others])
        self.regency = self._believed([standing.regency for standing in others])
        return True

    def remember(self) -> None:
        """The disk knows what this broker did: there is no need for caution."""
        self.fresh = False
        self._consensus.blind = 0

    def follow(self, before: Caution) -> None:
        """Go on after an earlier epoch: what this broker does in the new one it remembers."""
        if not before.fresh:
            self.remember()
        members = self._consensus.members
        self._awake = {member: None for member in before.awake if member in members}

    def relent(self, now: Millis) -> None:
        """Take part after all, if nothing goes on without this broker."""
        consensus = self._consensus
        if self.fresh:
            return
        self.quorate(now)  # whoever leads later need not begin to wait then
        decided, since = self._stuck
        if decided != consensus.decided:
            self._stuck = (consensus.decided, now)
        elif self._quorums.byzantine and decided < consensus.blind and now - since > RELENT_MS:
            consensus.blind = decided

    def _believed(self, numbers: list[int]) -> int:
        """The largest number that a correct broker reached."""
        ordered = sorted(numbers, reverse=True)
        return ordered[min(self._quorums.believe, len(ordered)) - 1] if ordered else 0
