"""A range of publications that a broker lost: what its peers say of it, and the contents."""

from __future__ import annotations

from quorumcast.cell.serving.desk import Desk
from quorumcast.cell.serving.pledges import Pledges
from quorumcast.core.ids import Stream
from quorumcast.core.machine import Bodies
from quorumcast.core.statements import Basis
from quorumcast.core.tally import Tally
from quorumcast.manifest.manifest import ChannelEntry


class Job:
    """One range under way."""

    __slots__ = ("bodies", "count", "first", "stream", "ticks", "words")

    def __init__(self, stream: Stream, first: int, count: int) -> None:
        self.stream = stream
        self.first = first
        self.count = count
        #: One word per broker: the digests of the whole range.
        self.words: Tally[bytes] = Tally()
        #: Contents that match their digests, of one peer.
        self.bodies: tuple[bytes, Bodies] | None = None
        #: For how many ticks it has been under way.
        self.ticks = 0

    def doubt(self) -> None:
        """Let go of contents that are not what most say: another peer may have the right ones."""
        best = max(self.words.values(), key=self.words.count, default=None)
        if self.bodies is not None and self.bodies[0] != best:
            self.bodies = None


def front(desk: Desk | None, stream: Stream) -> int:
    """From where on a broker goes on by the word of its peers."""
    return 1 if desk is None else desk.lane(stream.lane).front


def borders(job: Job, desk: Desk | None) -> bool:
    """Whether a range still lies right after, or right before, what is held."""
    if desk is None:
        return False
    before = job.first + job.count == desk.lane(job.stream.lane).final_from
    return before or is_after(job, desk)


def is_after(job: Job, desk: Desk | None) -> bool:
    """Whether a range lies after what is held, and not before."""
    return desk is not None and job.first == front(desk, job.stream)


def own_words(entry: ChannelEntry, pledges: Pledges, stream: Stream, end: int) -> int:
    """Whether this broker's journal has a word on what lies before a number: 1, or 0.

    It counts where each broker vouches for what it forwarded, and not where they settle it.
    """
    known = end > 1 and pledges.of(stream, end - 1, 1) != [None]
    return int(known and entry.policy.basis is Basis.FORWARDED)
