"""The broker that sends a subscriber the bodies together with its votes, and what it owes."""

from __future__ import annotations

from collections.abc import Mapping

from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.machine import Bodies


class Source:
    """The source of one channel; `fetching` chooses and replaces it."""

    __slots__ = ("_owed_from", "bare", "broker", "late", "replaced", "withheld")

    def __init__(self) -> None:
        self.broker: NodeId | None = None
        #: How often it voted without the body, which had to be pulled; at how many looks in a row
        #: its bodies were missing; and how often in a row it voted without a body that it owed.
        self.withheld = self.late = self.bare = 0
        #: How many sources were replaced because they were late.
        self.replaced = 0
        #: The first number of each stream with which it owes bodies; None while it need not know
        #: that it is the source. Streams that begin later count from 1.
        self._owed_from: dict[Stream, int] | None = None

    def __len__(self) -> int:
        return len(self._owed_from or ())

    def use(self, broker: NodeId | None) -> None:
        """Take bodies from another broker from now on."""
        self.broker = broker
        self.withheld = self.late = self.bare = 0
        self._owed_from = None

    def sent(self, broker: NodeId, bodies: Bodies) -> None:
        """A broker voted, perhaps with bodies: then the source withholds none for now."""
        if self.bare and bodies and broker == self.broker:
            self.bare = 0

    def doubt(self, broker: NodeId) -> None:
        """A broker may have restarted: then it no longer knows that it is the source."""
        if broker == self.broker:
            self._owed_from = None

    def note(self, broker: NodeId, acceptors: Mapping[Stream, Acceptor], *, knows: bool) -> None:
        """A broker says whether it sends bodies: what it voted on before, it need not send."""
        if broker != self.broker:
            return
        if not knows:
            self._owed_from = None
        elif self._owed_from is None:
            voted = {stream: a.last_vote.get(broker, 0) for stream, a in acceptors.items()}
            self._owed_from = {stream: number + 1 for stream, number in voted.items()}

    def forget(self, stream: Stream) -> None:
        """A stream is followed no more."""
        if self._owed_from is not None:
            self._owed_from.pop(stream, None)

    def owes(self, acceptor: Acceptor, number: int) -> bool:
        """Whether it should have sent the body of a number with its vote.

        Not if it voted before it knew that it is the source, or if the body came and there was no
        room for it here. A source that does not say that it knows owes everything.
        """
        owed_from = 1 if self._owed_from is None else self._owed_from.get(acceptor.stream, 1)
        due = number >= owed_from and number > acceptor.refused
        return due and acceptor.voted(self.broker, number)

    def withholds(self, acceptor: Acceptor, number: int) -> bool:
        """Whether it knowingly voted for a decided number without its body."""
        return self._owed_from is not None and self.broker in acceptor.voters(number)
