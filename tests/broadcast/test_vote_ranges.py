"""VoteRanges: cut only where words differ, so that one tally counts for each number in them."""

from quorumcast.broadcast.vote_ranges import VoteRange, VoteRanges, part_of
from quorumcast.core.ids import NodeId
from quorumcast.crypto.digest import hasher

HASH = hasher("sha256")
ALICE, BOB = NodeId("b1"), NodeId("b2")


def digests(*names: str) -> bytes:
    return b"".join(HASH(name.encode()) for name in names)


def box_of(first: int, *names: str) -> VoteRange:
    span = VoteRange(first, len(names))
    span.tally.vote(ALICE, (digests(*names), ()))
    return span


def test_box_same_word_is_not_disputed() -> None:
    assert box_of(1, "a", "b", "c").disputed(digests("a", "b", "c")) == []
    assert VoteRange(1, 3).disputed(digests("a", "b", "c")) == []


def test_box_other_word_of_every_number_is_not_disputed() -> None:
    assert box_of(1, "a", "b", "c").disputed(digests("x", "y", "z")) == []


def test_box_one_other_number_is_cut_around_it() -> None:
    assert box_of(1, "a", "b", "c", "d").disputed(digests("x", "b", "c", "d")) == [1]
    assert box_of(1, "a", "b", "c", "d").disputed(digests("a", "x", "c", "d")) == [1, 2]


def test_box_several_words_each_of_them_cuts() -> None:
    span = box_of(1, "a", "b", "c", "d")
    span.tally.vote(BOB, (digests("w", "x", "y", "z"), ()))
    assert span.disputed(digests("a", "x", "y", "q")) == [1, 3]


def test_box_what_a_history_decided_is_a_word() -> None:
    span = VoteRange(1, 2)
    span.decided = digests("a", "b")
    assert span.disputed(digests("a", "x")) == [1]


def test_box_cut_parts_keep_votes_bodies_and_decision() -> None:
    span = box_of(5, "a", "b", "c")
    span.decided = digests("a", "b", "c")
    span.by_history = True
    span.bodies[span.decided] = (b"a", b"b", b"c")
    parts = span.split([1])
    assert [(part.first, part.count) for part in parts] == [(5, 1), (6, 2)]
    assert parts[1].tally.vote_of(ALICE) == (digests("b", "c"), ())
    assert parts[1].decided == digests("b", "c")
    assert parts[1].bodies == {digests("b", "c"): (b"b", b"c")}
    assert parts[1].by_history
    assert sum(part.size for part in parts) == span.size == 3


def test_region_splits_ranges_at_its_ends_and_fills_each_gap_with_one_range() -> None:
    ranges = VoteRanges()
    ranges.add(box_of(1, "a", "b", "c"))
    ranges.add(box_of(8, "h", "i", "j"))
    found = ranges.region(2, 8, create=True)
    assert [(span.first, span.count) for span in found] == [(2, 2), (4, 4), (8, 2)]
    assert [(span.first, span.count) for span in ranges.region(1, 20, create=False)] == [
        (1, 1), (2, 2), (4, 4), (8, 2), (10, 1),
    ]  # fmt: skip
    assert ranges.top == 10


def test_region_without_creating_leaves_gaps() -> None:
    ranges = VoteRanges()
    ranges.add(box_of(3, "c"))
    assert [span.first for span in ranges.region(1, 10, create=False)] == [3]
    assert [span.first for span in ranges.all()] == [3]


def test_part_of_a_run_holds_the_digests_of_the_range() -> None:
    assert part_of(VoteRange(6, 2), 5, digests("a", "b", "c", "d")) == digests("b", "c")
