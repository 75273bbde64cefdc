"""Room for frames that are longer than the usual buffer of a link.

A peer fills our memory with each frame that it does not finish, on each of its links. So a link
reads more of a long frame only once there is room for all of it, and all links of one identity
share that room. A link that finds none reads nothing more and waits for its turn. Room is taken for
a whole frame at a time: the link that has it can finish, so no two links wait for each other.

A link that has room and sends nothing while another one waits is closed: its process may be gone.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from quorumcast.runtime.links.limits import TransportLimits


class FrameReader(Protocol):
    """A link as it is seen from here."""

    def unread_bytes(self) -> int:
        """Bytes that were read and not handled."""

    def is_done(self) -> bool:
        """Whether nothing is left to do until more is read."""

    def enlarge(self) -> None:
        """There is room for the frame that it waits to read."""

    def break_off(self) -> None:
        """It has room, sends nothing, and others wait."""


class Inbox:
    """The room of one identity for long frames."""

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
        """Bytes that its links may take up beside their usual buffers."""
        return self._taken + sum(self._kept.values())

    def enter(self, link: FrameReader, size: int) -> bool:
        """Take room for a whole frame; a link that gets none is told when there is some."""
        if link in self._holders:
            return True
        if self._waiting or not self._fits(size):
            self._waiting[link] = size
            self._watch()
            return False
        self._hold(link, size)
        return True

    def keep(self, link: FrameReader, size: int) -> bool:
        """The frame is handled; whether the link may keep its buffer for the next one."""
        if self._kept.get(link) == size:
            return True
        self.leave(link)
        if sum(self._kept.values()) + size > self._limits.kept_bytes:
            return False
        self._kept[link] = size
        return True

    def leave(self, link: FrameReader) -> None:
        """The link needs no room any more, or is gone."""
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
            self._seen = {link: link.unread_bytes() for link in self._holders}
            asyncio.get_running_loop().call_later(self._limits.deaf_s, self._look)

    def _look(self) -> None:
        """Close whoever has room and has sent nothing since the last look."""
        seen, self._seen = self._seen or {}, None
        if not self._waiting:
            return
        for link, size in seen.items():
            # A link with a whole frame waits for us, and not we for it.
            if link in self._holders and link.is_done() and link.unread_bytes() == size:
                link.break_off()
        self._watch()
