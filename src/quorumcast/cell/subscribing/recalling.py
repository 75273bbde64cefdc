"""Reading single positions of a total order again, anywhere in what the cell still holds.

A subscription runs forward from where it began. To *recall* positions of the past (work that is to
be repeated, the operations of a companion channel), a subscriber pulls them from as many brokers as
it takes to accept a position; a position counts once that many have sent contents with one digest.
If answers are late, all brokers are asked, also for the bases of what they hold (`Positions`): a
position before all believable bases is gone.

A recall needs an interest in its channel, and concerns positions before the subscriber's cursor.

Brokers of a channel that carries on some rows of another cell's hold results: a position is
recalled as the rows that are carried on, or with the news that there are none.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from quorumcast.broadcast.application import Deliver, Recall, Recalled, Waive
from quorumcast.broadcast.messages import Contents, Pull
from quorumcast.cell.subscribing.fetching import RANGES_AT_ONCE, number_ranges
from quorumcast.cell.subscribing.interest import Interest
from quorumcast.core.cuts import head_of, is_result, publication_of
from quorumcast.core.ids import (
    DIGEST_SIZE,
    NOTHING,
    Channel,
    Digest,
    Lane,
    NodeId,
    Stream,
    split_digests,
    total_order,
)
from quorumcast.core.labels import unlabel
from quorumcast.core.limits import MAX_RUN
from quorumcast.core.machine import (
    CancelTimer,
    Drop,
    DropReason,
    Effect,
    Send,
    SetTimer,
    Suspect,
    Suspicion,
    Timer,
)
from quorumcast.core.tally import Tally
from quorumcast.manifest.view import View

RECALL_MS = 60
#: Late answers in a row, about eight seconds, after which silent brokers do not count.
PATIENT_TRIES = 16
#: Positions that may be recalled at the same time, on all channels.
MAX_RECALLED = MAX_RUN


class RecallDue(Timer, frozen=True, tag=True):
    """Answers to a recall on this channel are late."""

    channel: Channel


class RecalledPosition(msgspec.Struct):
    """A position that is recalled: its digest by each broker, and contents by digest."""

    tally: Tally[Digest]
    bodies: dict[Digest, bytes]


class Recaller:
    """Recalls positions for one subscriber."""

    __slots__ = ("_tries", "_up", "_view", "_wanted")

    def __init__(self, view: View, up: Collection[NodeId]) -> None:
        self._view = view
        #: Brokers that can be reached; the subscriber's own, which changes.
        self._up = up
        #: What is recalled, at most MAX_RECALLED; one body for each broker that answered.
        self._wanted: dict[Channel, dict[int, RecalledPosition]] = {}
        #: How often each channel's answers were late in a row.
        self._tries: dict[Channel, int] = {}

    def sizes(self) -> dict[str, int]:
        """How much is kept."""
        return {"recalled": sum(map(len, self._wanted.values()))}

    def recount(self) -> None:
        """Go on in a new epoch: answers of brokers that left no longer count."""
        for wanted in self._wanted.values():
            for found in wanted.values():
                found.tally.retain(self._view.brokers)

    def forget(self, channel: Channel) -> list[Effect]:
        """Forget a channel that was left."""
        self._tries.pop(channel, None)
        if self._wanted.pop(channel, None) is None:
            return []
        return [CancelTimer(RecallDue(channel))]

    def on_recall(self, interest: Interest | None, recall: Recall) -> list[Effect]:
        """The application wants these positions."""
        if interest is None or not interest.entry.policy.total:
            return []
        wanted = self._wanted.setdefault(interest.channel, {})
        fresh = [p for p in range(recall.first, recall.first + recall.count) if p not in wanted]
        room = MAX_RECALLED - sum(map(len, self._wanted.values()))
        fresh = fresh[: max(room, 0)]
        wanted.update({position: RecalledPosition(Tally(), {}) for position in fresh})
        gone = self._gone(interest)
        self._tries[interest.channel] = 0
        return gone + self._ask(interest, list(wanted)) + self._await(interest.channel)

    def on_waive(self, waive: Waive) -> list[Effect]:
        """Nobody waits for these positions any more: there is room for others."""
        wanted = self._wanted.get(waive.channel, {})
        for position in range(waive.first, waive.first + waive.count):
            wanted.pop(position, None)
        return [] if wanted else self.forget(waive.channel)

    def on_due(self, interest: Interest | None, channel: Channel) -> tuple[bool, list[Effect]]:
        """Answers are late: ask all brokers; returns whether to ask for bases as well."""
        if interest is None or not self._wanted.get(channel):
            return False, []
        self._tries[channel] = self._tries.get(channel, 0) + 1
        effects = self._gone(interest)
        effects += self._ask(interest, list(self._wanted.get(channel, ())))
        return True, effects + self._await(channel)

    def on_contents(
        self, interest: Interest, broker: NodeId, message: Contents, bodies: tuple[bytes, ...]
    ) -> tuple[bool, list[Effect]]:
        """A broker's contents of positions; False if none of them was recalled."""
        wanted = self._wanted.get(interest.channel)
        count = len(message.digests) // DIGEST_SIZE
        if not wanted or message.stream != total_order(interest.channel):
            return False, []
        mine = [n for n in range(message.first, message.first + count) if n in wanted]
        if not mine:
            return False, []
        if len(message.digests) % DIGEST_SIZE or len(bodies) != count:
            return True, [Drop(DropReason.BAD_RUN, broker)]
        digests = split_digests(message.digests)
        effects: list[Effect] = []
        before = len(wanted)
        for number in mine:
            here = number - message.first
            effects += self._on_answer(interest, broker, number, digests[here], bodies[here])
        if len(wanted) < before:
            # Brokers answer: ask for the rest soon, in large ranges.
            self._tries[interest.channel] = 0
            effects += self._await(interest.channel)
        return True, effects

    def _on_answer(
        self, interest: Interest, broker: NodeId, number: int, digest: Digest, body: bytes
    ) -> list[Effect]:
        stream = total_order(interest.channel)
        found = self._wanted[interest.channel][number]
        if self._view.hash(body) != digest and not _is_part(interest, body, digest):
            return [
                Drop(DropReason.BAD_BODY, broker),
                Suspect(broker, Suspicion.BAD_BODY, stream, number),
            ]
        # Only its first answer counts, so that each broker can make us keep one body at most.
        found.tally.vote(broker, digest)
        if found.tally.vote_of(broker) == digest:
            found.bodies[digest] = body
        chosen = found.tally.leader(interest.reports.needed(Lane.DATA))
        if chosen is None:
            return []
        del self._wanted[interest.channel][number]
        votes = tuple(found.tally.voters(chosen))
        dissent = tuple(b for b in found.tally.votes() if b not in votes)
        effects: list[Effect] = [
            Suspect(other, Suspicion.DISSENT, stream, number) for other in dissent
        ]
        if chosen == NOTHING:
            return [*effects, Recalled(interest.channel, number, None)]
        delivered = Deliver(stream, number, chosen, found.bodies[chosen], votes, dissent)
        if _is_part(interest, delivered.body, chosen):
            publication = publication_of(delivered.body)
            delivered = msgspec.structs.replace(delivered, digest=publication, cut=bytes(chosen))
        return [*effects, Recalled(interest.channel, number, delivered)]

    def _gone(self, interest: Interest) -> list[Effect]:
        """Positions that too few brokers still hold."""
        wanted = self._wanted.get(interest.channel, {})
        # Brokers that are down may hold more, but are waited for only so long.
        patient = self._tries.get(interest.channel, 0) < PATIENT_TRIES
        stream = total_order(interest.channel)
        reports = interest.reports
        oldest = reports.oldest(stream, without=() if patient else reports.silent())
        gone = [number for number in wanted if number < oldest]
        for number in gone:
            del wanted[number]
        return [Recalled(interest.channel, number, None, oldest) for number in gone]

    def _ask(self, interest: Interest, numbers: list[int]) -> list[Effect]:
        up = [broker for broker in self._view.brokers if broker in self._up]
        tries = self._tries.get(interest.channel, 0)
        # At first no more brokers than needed: each of them sends the contents.
        asked = tuple(up if tries else up[: interest.reports.needed(Lane.DATA)])
        if not asked:
            return []
        stream = total_order(interest.channel)
        # A broker that lacks the first of a range does not answer: ask for ever smaller ranges.
        most = max(1, MAX_RUN >> 3 * tries)
        return [
            Send(asked, Pull(stream, first, min(last - first + 1, most)))
            for first, last in number_ranges(sorted(numbers))[:RANGES_AT_ONCE]
        ]

    def _await(self, channel: Channel) -> list[Effect]:
        if not self._wanted.get(channel):
            return self.forget(channel)
        after_ms = RECALL_MS * min(1 + self._tries.get(channel, 0), 16)
        return [SetTimer(RecallDue(channel), after_ms)]


def _is_part(interest: Interest, body: bytes, value: Digest) -> bool:
    """Whether this is what a cell holds that carries on some rows of a channel."""
    return interest.entry.carried != "" and is_result(body, value)


def positioned(effect: Effect) -> Effect:
    """A position of a channel's order, turned into the publication that its label names.

    Brokers compare label and offer before they write, so what was decided is labelled.
    """
    if isinstance(effect, Recalled) and effect.found is not None:
        return msgspec.structs.replace(effect, found=positioned(effect.found))
    if not isinstance(effect, Deliver):
        return effect
    found = unlabel(head_of(effect.body) if effect.cut else effect.body)
    if found is None:
        return effect
    label, contents = found
    return msgspec.structs.replace(
        effect,
        stream=Stream(effect.stream.channel, NodeId(label.publisher), label.incarnation),
        number=label.number,
        body=effect.body if effect.cut else contents,
        position=effect.number,
    )
