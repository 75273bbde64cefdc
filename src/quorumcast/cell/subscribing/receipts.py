"""Receipts for one subscriber: statements at hand are filed, and brokers asked for what lacks.

Brokers send signed statements on whole segments by themselves. For a receipt on part of a segment
they are asked, again with every refresh, until enough have signed.
"""

from __future__ import annotations

from collections.abc import Collection

from quorumcast.broadcast.application import Prove
from quorumcast.broadcast.messages import Contents
from quorumcast.cell.accusations import Accusations
from quorumcast.cell.subscribing.archive import Archive
from quorumcast.cell.subscribing.fetching import Fetcher
from quorumcast.cell.subscribing.interest import Interest
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Accuse, Bodies, Drop, DropReason, Effect, Send
from quorumcast.core.quorum import receipt_votes
from quorumcast.core.statements import SegmentStatement, Signed
from quorumcast.manifest.view import View


class Receipts:
    """Asks brokers for signatures, and makes receipts of them."""

    __slots__ = ("_accusations", "_fetcher", "_up", "_view")

    def __init__(
        self, view: View, up: Collection[NodeId], fetcher: Fetcher, accusations: Accusations
    ) -> None:
        self._view = view
        #: Brokers that can be reached; the subscriber's own, which changes.
        self._up = up
        self._fetcher = fetcher
        self._accusations = accusations

    def on_prove(self, interest: Interest | None, event: Prove) -> list[Effect]:
        """The application wants a receipt: from statements at hand, or else brokers are asked."""
        archive = None if interest is None else interest.archives.get(event.stream)
        if interest is None or archive is None:
            return []
        form = interest.held(event.stream, event.number)
        if not archive.want(event.number, event.contents, form):
            return []
        proven = self._prove(interest, archive)
        if proven:
            return proven
        asked = archive.ask(interest.acceptors[event.stream], event.number)
        return [Send(tuple(self._up), asked), *self._fetcher.pull_cut(archive)]

    def on_statement(
        self, interest: Interest | None, broker: NodeId, statement: SegmentStatement, signed: Signed
    ) -> list[Effect]:
        """A broker has signed a segment; evidence that this completes goes to brokers as well."""
        archive = None if interest is None else interest.archives.get(statement.stream)
        if interest is None or archive is None:
            return [Drop(DropReason.UNKNOWN_STREAM, broker)]
        effects: list[Effect] = []
        for effect in archive.file(broker, statement, signed):
            if isinstance(effect, Accuse):
                effects += self._accusations.found(effect.evidence)
            else:
                effects.append(effect)
        return effects + self._prove(interest, archive)

    def on_contents(self, interest: Interest, message: Contents, bodies: Bodies) -> list[Effect]:
        """Contents have come that a receipt may have lacked."""
        archive = interest.archives.get(message.stream)
        if archive is None or not archive.lacking():
            return []
        archive.complete(message, bodies)
        return self._prove(interest, archive)

    def refresh(self, interest: Interest) -> list[Effect]:
        """Ask again for receipts that are still awaited."""
        effects: list[Effect] = []
        for archive in interest.archives.values():
            if not archive.awaits:
                continue
            acceptor = interest.acceptors[archive.stream]
            effects += [
                Send(tuple(self._up), archive.ask(acceptor, number)) for number in archive.refresh()
            ]
            effects += self._fetcher.pull_cut(archive)
        return effects

    def _prove(self, interest: Interest, archive: Archive) -> list[Effect]:
        votes = receipt_votes(self._view.quorums, interest.entry.policy.protection)
        return archive.prove(interest.acceptors[archive.stream], votes)
