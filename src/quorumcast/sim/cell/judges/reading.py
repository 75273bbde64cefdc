"""Readers of the past get everything that was acknowledged before they began.

`replay`, batch reads of Spark and `Subscription.held` begin in the past and end where the
subscriber machine says that the channel ended (`Subscriber.ends`; `Subscriber.end`).
What a publisher had been told is safe before the reader joined lies before that end, and the reader
gets it before it ends.
"""

from __future__ import annotations

from quorumcast.cell.subscribing.interest import DOUBTFUL_TICKS
from quorumcast.cell.subscribing.subscriber import REFRESH_MS
from quorumcast.core.ids import Stream, total_order
from quorumcast.manifest.manifest import Manifest
from quorumcast.sim.cell.judges.facts import CellFacts, may_publish, may_subscribe
from quorumcast.sim.cell.judges.readers import OwedPast, Reader
from quorumcast.sim.kernel.judging import EffectChecker

#: Time for which a reader waits for brokers that may know of more.
PATIENCE_MS = DOUBTFUL_TICKS * REFRESH_MS


class ReadToTheEnd(EffectChecker):
    """A reader of the past does not end before what was acknowledged when it joined.

    It is judged once the run is over, since only then all positions are known. Numbers that a
    reader got late do not count for it: what lies beyond the end that it was told is reported, and
    what lies before that end comes in order (`Fifo`).
    """

    name = "Present end"

    def at_end(self, facts: CellFacts) -> None:
        if facts.gaps_allowed:
            return  # brokers may lose more than the others can replace
        for reader in facts.readers:
            past = reader.past
            if past is None or reader.standing_at is None or reader.until > 1:
                continue  # a range ends at its own end (`Extracts`), unless it is empty
            if not may_subscribe(facts.manifest_of(reader.node), reader.node, reader.channel):
                continue  # it lost the right, or the channel was deleted
            for stream, upto in past.acknowledged.items():
                # Subscribers drop the streams of publishers that lost the right.
                if facts.adversary.is_correct(stream.publisher) and may_publish(
                    facts.manifest_of(stream.publisher), stream.publisher, stream.channel
                ):
                    self._check(facts, reader, past, stream, upto)

    def _check(
        self, facts: CellFacts, reader: Reader, past: OwedPast, stream: Stream, upto: int
    ) -> None:
        entry = facts.manifest_of(reader.node).channel(stream.channel)
        total = entry is not None and entry.policy.total
        got = reader.numbers.get(stream, {})
        lacking = dict.fromkeys(facts.missing(reader, stream, 1, upto))
        for number in range(1, upto + 1):
            place: tuple[Stream, int] = (stream, number)
            if total:
                # Nobody has accepted it if its position is unknown.
                position = facts.places.get(place, 0)
                place = (total_order(stream.channel), position)
            beyond = place[1] >= past.ends.get(place[0], 0)
            ended_without = past.concluded and not reader.until and number in lacking
            if not (beyond or ended_without) or (beyond and number not in got | lacking):
                continue
            if self._is_owed(facts, reader, past, stream, number):
                what = "was told of an end before" if beyond else "ended without"
                facts.violate(
                    self.name, f"{reader} {what} {stream} {number}, acknowledged when it joined"
                )
                return

    def _is_owed(
        self, facts: CellFacts, reader: Reader, past: OwedPast, stream: Stream, number: int
    ) -> bool:
        if facts.had_gone(reader, stream, number):
            return False  # retention
        entry = facts.manifest_of(reader.node).channel(stream.channel)
        if entry is None:
            return False
        if not (entry.policy.total and entry.policy.journal):
            _, when = facts.published[stream][number - 1]
            if when <= past.lost_at:
                return False  # more than f brokers had lost it, and no journal has it
        vouching = [
            broker
            for broker in past.answered
            if broker not in past.unreliable and past.held.get((stream, broker), 0) >= number
        ]
        epochs = facts.manifests_of(reader.node)
        enough = max(1 if entry.policy.crash_only else m.quorums.one_correct for m in epochs)
        if len(vouching) >= enough:
            return True
        waited = (reader.standing_at or 0) - reader.joined_at >= PATIENCE_MS
        if waited and any(
            facts.adversary.is_correct(broker) and broker not in past.answered
            for broker in facts.manifest_of(reader.node).broker_ids
        ):
            return False  # too few brokers that knew of it answered in time
        return all(self._is_heard(m, stream, len(past.unreliable)) for m in epochs)

    def _is_heard(self, manifest: Manifest, stream: Stream, unreliable: int) -> bool:
        """Whether a broker that acknowledged is among any n-f, and does not deny it.

        Not so with the n = 2f+1 brokers of `direct` if one of them is faulty, nor with n = 2f
        brokers that only crash: there n-f acknowledge, and n-f others may answer.
        """
        channel, quorums = manifest.channel(stream.channel), manifest.quorums
        if channel is None:
            return False
        waited_for = quorums.responders
        if channel.policy.chained:
            waited_for = min(waited_for, quorums.chain_length)
        return waited_for - quorums.f - unreliable >= 1
