"""Receipts at a subscriber: asks brokers to sign what the application wants proven.

Statements on whole segments come by themselves; whatever the application wants before its segment
is whole is asked for, and asked for again with every refresh until enough brokers have signed.
"""

from __future__ import annotations

from collections.abc import Collection

from quorumcast.broadcast.application import Prove
from quorumcast.cell.messages import Checkpoint
from quorumcast.cell.subscribing.interest import Interest
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Drop, DropReason, Effect, Send
from quorumcast.core.quorum import receipt_votes
from quorumcast.core.statements import SegmentStatement
from quorumcast.manifest.view import View


class Receipts:
    """Gathers signatures for one subscriber."""

    __slots__ = ("_up", "_view")

    def __init__(self, view: View, up: Collection[NodeId]) -> None:
        self._view = view
        #: Brokers that can be reached; the subscriber's own, which changes.
        self._up = up

    def on_prove(self, interest: Interest | None, event: Prove) -> list[Effect]:
        """The application wants a receipt: from what is there, or else brokers are asked."""
        archive = None if interest is None else interest.archives.get(event.stream)
        if interest is None or archive is None or not archive.want(event.number, event.contents):
            return []
        effects = archive.prove(interest.acceptors[event.stream], self._votes(interest))
        if effects:
            return effects
        request = archive.ask(interest.acceptors[event.stream], event.number)
        return [Send(tuple(self._up), request)]

    def on_checkpoint(
        self,
        interest: Interest | None,
        broker: NodeId,
        statement: SegmentStatement,
        message: Checkpoint,
    ) -> list[Effect]:
        """A broker has signed."""
        archive = None if interest is None else interest.archives.get(statement.stream)
        if interest is None or archive is None:
            return [Drop(DropReason.UNKNOWN_STREAM, broker)]
        effects = archive.file(broker, statement, message.statement)
        acceptor = interest.acceptors[statement.stream]
        return effects + archive.prove(acceptor, self._votes(interest))

    def refresh(self, interest: Interest) -> list[Effect]:
        """Ask again for what is still awaited, for as long as an application would wait."""
        return [
            Send(tuple(self._up), archive.ask(interest.acceptors[archive.stream], number))
            for archive in interest.archives.values()
            for number in archive.refresh()
        ]

    def _votes(self, interest: Interest) -> int:
        return receipt_votes(self._view.quorums, interest.entry.policy.protection)
