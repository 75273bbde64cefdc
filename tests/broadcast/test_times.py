"""Finding the publications of a time in a ledger, without reading all of it each time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumcast.broadcast import times
from quorumcast.broadcast.ledger import Ledger
from quorumcast.broadcast.times import BLOCK, MAX_READ, Search
from quorumcast.core.envelope import stamp_of, write_envelope
from quorumcast.core.ids import Channel, Digest, NodeId, Stream
from quorumcast.core.labels import label
from quorumcast.core.limits import Limits

LIMITS = Limits(retained_publications=3 * BLOCK, window=8, segment=8)
STREAM = Stream(Channel("c"), NodeId("alice"), 2)


def append(ledger: Ledger, *stamps: int) -> None:
    for stamp in stamps:
        ledger.extend([Digest(b"d" * 32)], [write_envelope(stamp)])


def plain(ledger: Ledger, since_us: int) -> int:
    for number in range(ledger.base, ledger.next):
        held = ledger.read(number, 1, 10**6)
        assert held is not None
        if stamp_of(held.bodies[0], False) >= since_us:
            return number
    return ledger.next


@given(st.data())
def test_since_agrees_with_reading_everything(data: st.DataObject) -> None:
    ledger = Ledger(LIMITS)
    for _ in range(data.draw(st.integers(1, 4))):
        count = data.draw(st.integers(0, 2 * BLOCK))
        low = data.draw(st.integers(0, 50))
        append(ledger, *((low + i * i % 37) for i in range(count)))
        if data.draw(st.booleans()) and len(ledger):
            number = data.draw(st.integers(ledger.base, ledger.next - 1))
            ledger.correct(number, Digest(b"e" * 32), write_envelope(data.draw(st.integers(0, 90))))
        since_us = data.draw(st.integers(1, 100))
        assert ledger.since(Search(since_us), labelled=False) == plain(ledger, since_us)


def test_since_what_was_fetched_again_is_found() -> None:
    ledger = Ledger(LIMITS)
    append(ledger, 1, 1)
    ledger.skip_to(BLOCK // 2)
    append(ledger, *[5] * BLOCK)
    assert ledger.since(Search(9), labelled=False) == ledger.next
    assert ledger.prepend([Digest(b"d" * 32)], [write_envelope(9)])
    assert ledger.since(Search(9), labelled=False) == BLOCK // 2 - 1


def test_since_second_search_passes_over_whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(LIMITS)
    append(ledger, *range(1, 3 * BLOCK + 1))
    read: list[int] = []

    def counted(body: bytes, labelled: bool) -> int:
        read.append(1)
        return stamp_of(body, labelled)

    monkeypatch.setattr(times, "stamp_of", counted)
    for _ in range(2):
        read.clear()
        assert ledger.since(Search(3 * BLOCK - 9), labelled=False) == 3 * BLOCK - 9
    assert len(read) <= BLOCK
    append(ledger, *[1] * 9 * BLOCK)
    assert ledger.since(Search(10**9), labelled=False) == ledger.next
    assert len(ledger._times) <= LIMITS.retained_publications // BLOCK + 1


def test_since_one_search_reads_a_bounded_number_and_stays_before_the_time() -> None:
    limits = Limits(retained_publications=3 * MAX_READ)
    first, second = Ledger(limits), Ledger(limits)
    for ledger in (first, second):
        append(ledger, *[1] * 2 * MAX_READ, 7)
    search = Search(7)
    assert first.since(search, labelled=False) <= MAX_READ + 1
    assert second.since(search, labelled=False) == second.base
    found = [first.since(Search(7), labelled=False) for _ in range(3)]
    assert found[-1] == 2 * MAX_READ + 1 == first.next - 1
    assert found == sorted(found)


@given(st.binary(max_size=40), st.booleans())
def test_stamp_of_odd_bodies_is_a_number(body: bytes, labelled: bool) -> None:
    assert isinstance(stamp_of(body, labelled), int)


def test_stamp_of_labelled_body_is_behind_the_label() -> None:
    body = label(STREAM, 7) + write_envelope(1234) + b"rest"
    assert stamp_of(body, True) == 1234
    assert stamp_of(body[:-12], True) == -1
