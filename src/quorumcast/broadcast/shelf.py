"""Digests and contents of consecutive numbers, written, read and dropped as whole runs.

A list, and digests end to end, serve a run of a hundred publications with a few slices;
dictionaries would take a step for each number. Contents are dropped at once, their places in the
list only when many are empty, because that moves everything behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumcast.core.errors import ensure
from quorumcast.core.ids import DIGEST_SIZE, Digest

#: Empty places at the front that are always allowed.
SLACK = 1024


class Shelf:
    """What is held of the numbers from `start` on, `len()` of them."""

    __slots__ = ("_bodies", "_digests", "_gone", "start")

    def __init__(self, start: int) -> None:
        #: The first number that is held.
        self.start = start
        self._digests = bytearray()
        self._bodies: list[bytes] = []
        #: Empty places in `_bodies` before the first one that is held.
        self._gone = 0

    def __len__(self) -> int:
        return len(self._bodies) - self._gone

    def digest(self, number: int) -> Digest | None:
        """The digest of a number, if it is held."""
        at = (number - self.start) * DIGEST_SIZE
        # Beyond the end the slice is empty.
        return (Digest(bytes(self._digests[at : at + DIGEST_SIZE])) or None) if at >= 0 else None

    def body(self, number: int) -> bytes:
        """The contents of a number that is held."""
        return self._bodies[self._place(number)]

    def digests(self, first: int, stop: int) -> bytes:
        """The digests of a range that is held, end to end."""
        at, end = first - self.start, stop - self.start
        return bytes(self._digests[at * DIGEST_SIZE : end * DIGEST_SIZE])

    def bodies(self, first: int, stop: int) -> list[bytes]:
        """The contents of a range that is held."""
        return self._bodies[self._place(first) : self._place(stop)]

    def size(self, first: int, stop: int) -> int:
        """Bytes of the contents of a range that is held."""
        return sum(map(len, self.bodies(first, stop)))

    def extend(self, digests: Sequence[Digest], bodies: Sequence[bytes]) -> None:
        """Hold the next numbers as well."""
        self._digests += _joined(digests, len(bodies))
        self._bodies += bodies

    def prepend(self, digests: Sequence[Digest], bodies: Sequence[bytes]) -> None:
        """Hold the numbers right before the first one as well."""
        self._digests[:0] = _joined(digests, len(bodies))
        self._bodies[: self._gone] = bodies
        self._gone = 0
        self.start -= len(bodies)

    def correct(self, number: int, digest: Digest, body: bytes) -> None:
        """Hold something else at a number that is held."""
        at = (number - self.start) * DIGEST_SIZE
        self._digests[at : at + DIGEST_SIZE] = _joined((digest,), 1)
        self._bodies[self._place(number)] = body

    def drop(self, count: int) -> None:
        """Drop the first numbers."""
        gone = self._gone + count
        self._bodies[self._gone : gone] = [b""] * count
        del self._digests[: count * DIGEST_SIZE]
        self.start += count
        if gone > SLACK and gone > len(self._bodies) // 4:
            del self._bodies[:gone]
            gone = 0
        self._gone = gone

    def cut(self, count: int) -> None:
        """Drop the last numbers."""
        left = len(self) - count
        del self._digests[left * DIGEST_SIZE :], self._bodies[self._gone + left :]

    def clear(self, start: int) -> None:
        """Hold nothing, and go on at this number."""
        self.start, self._gone = start, 0
        self._digests.clear()
        self._bodies.clear()

    def _place(self, number: int) -> int:
        return number - self.start + self._gone


def _joined(digests: Sequence[Digest], count: int) -> bytes:
    joined = b"".join(digests)
    ensure(len(joined) == count * DIGEST_SIZE, "each publication has a digest of the usual size")
    return joined
