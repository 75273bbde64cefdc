"""What subscribers ask a broker for: votes from a number on, contents, and signatures."""

from __future__ import annotations

from quorumcast.broadcast.contract import answer_pull
from quorumcast.broadcast.messages import Pull
from quorumcast.cell.messages import Attest, Positions, Subscribe
from quorumcast.cell.serving.admission import Admission
from quorumcast.cell.serving.audience import ATTESTS, PULLS, Audience
from quorumcast.cell.serving.journal_writer import JournalWriter
from quorumcast.cell.serving.recovering.recovery import Recovery
from quorumcast.cell.serving.relays import Relays
from quorumcast.cell.serving.sequencers import Sequencers
from quorumcast.cell.serving.served_streams import ServedStreams
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Drop, DropReason, Effect, Receive, Send


class Requests:
    """Answers the requests of subscribers, within their rights and budgets."""

    __slots__ = (
        "_admission",
        "_audience",
        "_recovery",
        "_relays",
        "_sequencers",
        "_served",
        "_writer",
    )

    def __init__(
        self,
        served: ServedStreams,
        audience: Audience,
        admission: Admission,
        writer: JournalWriter,
        recovery: Recovery,
        sequencers: Sequencers,
        relays: Relays,
    ) -> None:
        self._served = served
        self._audience = audience
        self._admission = admission
        self._writer = writer
        self._recovery = recovery
        self._sequencers = sequencers
        self._relays = relays

    def on_subscribe(
        self, sender: NodeId, asked: Subscribe, now: Millis
    ) -> tuple[bool, list[Effect]]:
        """Replay what a subscriber lacks; returns whether it is one of the audience now."""
        channel = asked.channel
        if refusal := self._admission.may_not_enter(sender, asked, now):
            return False, refusal
        known = self._audience.filtered.known
        if known.is_reading(sender, channel):
            return False, known.await_reading()
        self._audience.enter(sender, asked)
        if not asked.cursors and self._relays.is_behind(channel):
            return False, []  # it cannot tell where to begin; the subscriber asks again
        cursors = {cursor.stream: cursor.next for cursor in asked.cursors}
        held = self._served.positions(
            channel, self._recovery.expects, asked.since, cursors, few=asked.few
        )
        nothing = all(position.next == 1 for position in held)
        if nothing and self._sequencers.is_behind(channel):
            return False, []  # it cannot tell where the order begins; the subscriber asks again
        effects: list[Effect] = [
            Send((sender,), Positions(channel, held, asked.join, asked.bodies, asked.few))
        ]
        for stream, first in cursors.items():
            served = self._served.with_lane(stream)
            if served is not None and stream.channel == channel:
                effects += self._audience.replay(served, sender, stream, first, asked, now)
        return not asked.until, effects

    def read_on(self) -> tuple[Receive | None, list[Effect]]:
        """Read predicates on; returns the request of a subscriber if all of its are read now."""
        known = self._audience.filtered.known
        found, effects = known.read_on(), known.await_reading()
        if found is None:
            return None, effects
        reader, channel, asked = found
        if isinstance(asked, UsageError):
            self._audience.leave(reader, channel)
            return None, effects + self._admission.refuse_predicates(reader, channel, asked)
        return Receive(reader, asked), effects

    def on_pull(self, event: Receive, now: Millis) -> list[Effect]:
        """Send contents, or vote again for what predicates make of them."""
        message, sender = event.message, event.sender
        if not isinstance(message, Pull):
            return []
        if refusal := self._admission.may_not_listen(sender, message.stream.channel):
            return refusal
        if not self._audience.may_ask(sender, Pull, PULLS, now):
            return [Drop(DropReason.OVER_LIMIT, sender)]
        served = self._served.with_lane(message.stream)
        if served is None:
            return [Drop(DropReason.UNKNOWN_STREAM, sender)]
        if message.where:
            return self._audience.answer(served, sender, message, now)
        return answer_pull(served.ledger(message.stream.lane), event, message)

    def on_attest(self, event: Receive, now: Millis) -> list[Effect]:
        """Sign for a segment."""
        message, sender = event.message, event.sender
        if not isinstance(message, Attest):
            return []
        if refusal := self._admission.may_not_listen(sender, message.stream.channel):
            return refusal
        if not self._audience.may_ask(sender, Attest, ATTESTS, now):
            return [Drop(DropReason.OVER_LIMIT, sender)]
        served = self._served.with_lane(message.stream)
        if served is not None:
            signed = served.notary.attest(served.carrier, message.number, message.first)
            if signed is not None:
                return self._writer.send_signed(served, signed, (sender,))
        return [Drop(DropReason.NOT_HELD, sender)]
