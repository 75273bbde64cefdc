"""A memory budget for frames that are longer than the usual buffer of a link.

A peer could fill our memory with unfinished frames on many links. So a link reads on in a long
frame only once the whole frame fits into a budget that all links of one identity share; otherwise
it stops reading and waits for its turn. Because room is taken for a whole frame at a time, the link
that has it can finish: no two links wait for each other. A link that has room and sends nothing
while another one waits is closed, as its process may be gone.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from quorumcast.runtime.links.limits import TransportLimits


class FrameReader(Protocol):
    """What an inbox needs of a link."""

    def unhandled_bytes(self) -> int:
        """The number of bytes that were read and not handled."""

    def is_done(self) -> bool:
        """Whether nothing is left to do until more is read."""

    def enlarge(self) -> None:
        """Read on: there is room for the frame that has begun."""

    def break_off(self) -> None:
        """Close: it has room and sends nothing while others wait."""


class Inbox:
    """The budget of one identity for long frames."""

    __slots__ = ("_holders", "_kept", "_limits", "_seen", "_taken", "_waiting")

    def __init__(self, limits: TransportLimits) -> None:
        self._limits = limits
        #: Links with room for the frame that they read or handle, and its size.
        self._holders: dict[FrameReader, int] = {}
        #: The sum of these sizes; within the limit, or one frame alone.
        self._taken = 0
        #: Links that wait for room, the first one longest, and how much they want.
        self._waiting: dict[FrameReader, int] = {}
        #: Links that keep a large buffer for their next frame, and its size.
        self._kept: dict[FrameReader, int] = {}
        #: What each holder had sent at the last look; None while nobody waits.
        self._seen: dict[FrameReader, int] | None = None

    @property
    def size(self) -> int:
        """Bytes that the links may take up beside their usual buffers."""
        return self._taken + sum(self._kept.values())

    def enter(self, link: FrameReader, size: int) -> bool:
        """Take room for a whole frame; if there is none, the link is told later (`enlarge`)."""
        if link in self._holders:
            return True
        if self._waiting or not self._fits(size):
            self._waiting[link] = size
            self._watch()
            return False
        self._hold(link, size)
        return True

    def keep(self, link: FrameReader, size: int) -> bool:
        """Give back the room of a handled frame; whether the link may keep its large buffer."""
        if self._kept.get(link) == size:
            return True
        self.leave(link)
        if sum(self._kept.values()) + size > self._limits.kept_bytes:
            return False
        self._kept[link] = size
        return True

    def leave(self, link: FrameReader) -> None:
        """Give back all room of a link, and pass it on to those that wait."""
        self._kept.pop(link, None)
        self._waiting.pop(link, None)
        self._taken -= self._holders.pop(link, 0)
        while self._waiting:
            first, size = next(iter(self._waiting.items()))
            if not self._fits(size):
                break
            del self._waiting[first]
            self._hold(first, size)
            first.enlarge()

    def _fits(self, size: int) -> bool:
        return not self._holders or self._taken + size <= self._limits.inbox_bytes

    def _hold(self, link: FrameReader, size: int) -> None:
        self._kept.pop(link, None)
        self._holders[link] = size
        self._taken += size

    def _watch(self) -> None:
        if self._seen is None:
            self._seen = {link: link.unhandled_bytes() for link in self._holders}
            asyncio.get_running_loop().call_later(self._limits.stall_timeout_s, self._look)

    def _look(self) -> None:
        """Close each link that has room and has sent nothing since the last look."""
        seen, self._seen = self._seen or {}, None
        if not self._waiting:
            return
        for link, size in seen.items():
            # A link with a whole frame left (not done) waits for us, not we for its peer.
            if link in self._holders and link.is_done() and link.unhandled_bytes() == size:
                link.break_off()
        self._watch()
