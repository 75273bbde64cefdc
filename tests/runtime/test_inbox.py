"""Room for long frames: shared by the links of an identity, taken for whole frames, in turn."""

import asyncio

from tests.runtime.world import run, until

from quorumcast.runtime.links.inbox import Inbox
from quorumcast.runtime.links.limits import TransportLimits

LIMITS = TransportLimits(inbox_bytes=100, kept_bytes=30, stall_timeout_s=0.01)


class Seat:
    """A link that has read a part of a long frame."""

    def __init__(self, inbox: Inbox, *, trickles: bool = False) -> None:
        self.inbox = inbox
        self.is_large = self.is_gone = False
        self._trickles = trickles
        self._read = 1

    def unhandled_bytes(self) -> int:
        self._read += self._trickles
        return self._read

    def is_done(self) -> bool:
        return True

    def enlarge(self) -> None:
        self.is_large = True

    def break_off(self) -> None:
        self.is_gone = True
        self.inbox.leave(self)


def test_inbox_room_is_taken_for_whole_frames_and_the_rest_waits_in_turn() -> None:
    async def main() -> None:
        inbox = Inbox(LIMITS)
        first, second, third = seats = [Seat(inbox) for _ in range(3)]
        assert [inbox.enter(seat, 60) for seat in seats] == [True, False, False]
        assert inbox.enter(first, 60)
        assert inbox.size == 60
        inbox.leave(first)
        assert (second.is_large, third.is_large) == (True, False)
        inbox.leave(second)
        assert third.is_large
        assert inbox.size == 60

    run(main())


def test_inbox_frame_that_is_larger_than_all_room_is_read_alone() -> None:
    async def main() -> None:
        inbox = Inbox(LIMITS)
        large, small = Seat(inbox), Seat(inbox)
        assert inbox.enter(large, 101)
        assert not inbox.enter(small, 1)

    run(main())


def test_inbox_buffers_that_links_keep_are_bounded_together() -> None:
    async def main() -> None:
        inbox = Inbox(LIMITS)
        seats = [Seat(inbox) for _ in range(4)]
        assert [inbox.keep(seat, 15) for seat in seats] == [True, True, False, False]
        assert inbox.keep(seats[0], 15)
        inbox.leave(seats[1])
        assert inbox.keep(seats[2], 15)
        assert inbox.size == 30

    run(main())


def test_inbox_link_that_does_not_finish_its_frame_is_closed_if_others_wait() -> None:
    async def main() -> None:
        inbox = Inbox(LIMITS)
        idle, slow, late = Seat(inbox), Seat(inbox, trickles=True), Seat(inbox)
        assert inbox.enter(idle, 50)
        assert inbox.enter(slow, 50)
        await asyncio.sleep(3 * LIMITS.stall_timeout_s)
        gone = [idle.is_gone]
        assert not inbox.enter(late, 50)
        await until(lambda: late.is_large)
        assert [*gone, idle.is_gone, slow.is_gone] == [False, True, False]

    run(main())
