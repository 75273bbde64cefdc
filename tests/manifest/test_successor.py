"""What a running cell takes from one epoch to the next, and what it refuses with a way out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.manifest.cells import MANIFEST, NEWS, ORDERS, cell

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.core.limits import Limits
from quorumcast.core.quorum import Protection
from quorumcast.manifest.build import next_epoch
from quorumcast.manifest.manifest import ChannelEntry, LogTerms, Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.successor import check_successor

TRADES = ChannelEntry(Channel("trades"), Policy.named("total"))
COLUMNS = (("symbol", "string"), ("price", "float64"))
PRICES = ChannelEntry(Channel("prices"), Policy.named("brb"), schema=COLUMNS)


def channels(*entries: ChannelEntry) -> Manifest:
    return replace(MANIFEST, channels=entries)


def limited(entry: ChannelEntry, **limits: int) -> ChannelEntry:
    return replace(entry, policy=replace(entry.policy, limits=replace(Limits(), **limits)))


def total(name: str, *, journal: bool = False, crash: bool = False, **limits: int) -> ChannelEntry:
    policy = Policy.named("total-crash" if crash else "total", journal=journal)
    return limited(ChannelEntry(Channel(name), policy), **limits)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([ORDERS], [ORDERS, NEWS]),
        ([ORDERS, NEWS], [NEWS]),
        ([ORDERS], [replace(ORDERS, publishers=("bob",), subscribers=())]),
        ([PRICES], [replace(PRICES, schema=(*COLUMNS, ("at", "date32")))]),
        ([ORDERS], [limited(ORDERS, retained_publications=9000, kept_segments=3)]),
        ([TRADES], [limited(TRADES, retained_publications=9000)]),
        ([TRADES], [limited(TRADES, publisher_buffer=9)]),
        ([], [total("a", journal=True)]),
        ([total("a", journal=True)], [total("a", journal=True), total("b")]),
        ([total("a")], [total("a"), total("b", crash=True, journal=True)]),
        ([total("a", pipeline=9)], [total("a", pipeline=9), total("b")]),
        ([TRADES, total("a")], [TRADES]),
        ([TRADES, total("a")], [TRADES, total("b")]),
        ([total("a", pipeline=9), total("b")], [total("b"), total("c", pipeline=9)]),
        ([TRADES], []),
        ([total("a", journal=True), ORDERS], [ORDERS]),
        ([total("a", journal=True), TRADES], [TRADES]),
        ([total("a", pipeline=9), total("b", crash=True)], [total("c")]),
    ],
)
def test_successor_that_a_running_cell_takes(
    before: list[ChannelEntry], after: list[ChannelEntry]
) -> None:
    check_successor(channels(*before), next_epoch(channels(*before), channels=tuple(after)))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([TRADES], [replace(TRADES, since=0)], "changes when channel 'trades' was created"),
        ([TRADES], [], "changes the terms of the 'byzantine' log; keep them"),
        ([TRADES, total("a", crash=True)], [TRADES], "the terms of the 'crash' log"),
        ([total("a", journal=True), TRADES], [TRADES], "in 'kept_terms' if no channel has them"),
        ([total("a", pipeline=9), TRADES], [TRADES], "'quorumcast channel delete'"),
        ([ORDERS], [replace(ORDERS, policy=Policy.named("brb"))], "changes the policy of channel"),
        ([ORDERS], [replace(ORDERS, policy=Policy.named("ab+history", alpha=9))], "the policy"),
        ([NEWS], [replace(NEWS, policy=Policy.named("brb", journal=True))], "the policy"),
        ([ORDERS], [limited(ORDERS, segment=64)], "limit 'segment' of channel 'orders' cannot"),
        ([PRICES], [replace(PRICES, schema=COLUMNS[:1])], "must stay as they are"),
        ([PRICES], [replace(PRICES, schema=COLUMNS[::-1])], "must stay as they are"),
        ([PRICES], [replace(PRICES, schema=())], "has columns, and what is retained has them"),
        ([NEWS], [replace(NEWS, schema=COLUMNS)], "carries bytes, and what is retained is bytes"),
        ([total("a")], [total("a"), total("b", journal=True)], "created without a store"),
        ([total("a")], [total("a"), total("b", checkpoint=99)], "give it theirs, 8 and 64"),
    ],
)
def test_successor_that_a_running_cell_refuses(
    before: list[ChannelEntry], after: list[ChannelEntry], expected: str
) -> None:
    present = channels(*before)
    with pytest.raises(UsageError, match=expected):
        check_successor(present, replace(present, epoch=2, channels=tuple(after)))


def test_channel_says_in_which_epoch_it_was_created() -> None:
    first = channels(TRADES)
    both = next_epoch(first, channels=(total("a"), TRADES, ORDERS))
    assert [entry.since for entry in both.channels] == [2, 1, 2]
    # Not even an entry that is written anew changes that.
    kept = next_epoch(both, channels=(total("a"), TRADES))
    assert [entry.since for entry in kept.channels] == [2, 1]
    again = next_epoch(next_epoch(kept, channels=(TRADES,)), channels=(TRADES, total("a")))
    assert [entry.since for entry in again.channels] == [1, 5]
    check_successor(kept, again)  # by a broker that missed the epoch between


def test_log_keeps_its_terms_when_the_channels_that_gave_them_are_deleted() -> None:
    """As long as no channel has them; and they hold for channels that are created later."""
    present = channels(total("a", journal=True, pipeline=9), total("b", checkpoint=99), NEWS)
    terms = LogTerms(Protection.BYZANTINE, durable=True, pipeline=9, checkpoint=99)
    assert present.logs == {Protection.BYZANTINE: terms}
    for left in ([NEWS], [total("b", checkpoint=99)], [total("a", journal=True, pipeline=9)]):
        following = next_epoch(present, channels=tuple(left))
        check_successor(present, following)
        assert (following.kept_terms, following.logs) == ((terms,), present.logs)
        assert following.needs_store
        again = next_epoch(following, channels=(*left, total("c")))
        check_successor(following, again)
        assert again.logs == present.logs
        with pytest.raises(UsageError, match="give it theirs, 9 and 99, or less"):
            check_successor(again, next_epoch(again, channels=(*left, total("d", pipeline=10))))
    without = next_epoch(present, channels=())
    back = next_epoch(without, channels=present.channels)
    check_successor(without, back)
    assert (back.kept_terms, back.logs) == (msgspec.UNSET, present.logs)
    raised = replace(next_epoch(without), kept_terms=(replace(terms, pipeline=10),))
    with pytest.raises(UsageError, match="changes the terms of the 'byzantine' log"):
        check_successor(without, raised)


def test_log_without_channels_still_decides_which_epoch_follows() -> None:
    """So it needs as many brokers as before, and epochs that it did not decide may be skipped."""
    alone = next_epoch(brokers(5, 1, "total"), channels=())
    check_successor(alone, replace(next_epoch(alone, brokers=alone.brokers[:4]), epoch=9))
    with pytest.raises(UsageError, match=r"log of deleted 'total' channels .* needs 4 brokers"):
        next_epoch(alone, brokers=alone.brokers[:3])


@pytest.mark.parametrize(
    "changes",
    [{"cell": "other"}, {"digest": "blake2b"}, {"mac": "hmac-sha256"}, {"reproduction": True}],
    ids=str,
)
def test_successor_with_other_foundations_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="another"):
        check_successor(MANIFEST, cell(**changes)[0])


def brokers(n: int, f: int, *policies: str, without: tuple[int, ...] = ()) -> Manifest:
    """A cell of n brokers, minus some."""
    made = cell(n=n, f=f, channels=[ChannelEntry(Channel(p), Policy.named(p)) for p in policies])[0]
    return replace(made, brokers=tuple(b for i, b in enumerate(made.brokers) if i not in without))


@pytest.mark.parametrize(
    ("present", "following"),
    [
        (brokers(4, 1, "ab", "brb"), brokers(5, 1, "ab", "brb")),
        (brokers(5, 1, "ab+history"), brokers(5, 1, "ab+history", without=(0,))),
        (brokers(5, 1, "chain+history"), brokers(5, 1, "chain+history", without=(4,))),
        (brokers(7, 1, "brb"), brokers(7, 2, "brb")),
        (brokers(7, 2, "brb"), brokers(7, 1, "brb")),
        (brokers(4, 1, "chain"), brokers(5, 1, "chain")),
        (brokers(5, 1, "chain"), brokers(5, 1, without=(0,))),
    ],
)
def test_successor_one_step_is_taken(present: Manifest, following: Manifest) -> None:
    check_successor(present, replace(following, epoch=2))


@pytest.mark.parametrize(
    ("present", "following", "expected"),
    [
        (brokers(4, 1, "ab"), brokers(6, 1, "ab"), "adds b5 and adds b6 at once"),
        (brokers(5, 1, "ab", without=(4,)), brokers(5, 1, "ab", without=(0,)), "then remove the"),
        (brokers(7, 2, "ab"), brokers(7, 0, "ab"), "changes f from 2 to 0: change f by one"),
        (brokers(7, 2, "ab"), brokers(7, 1, "ab", without=(6,)), "and the brokers: change f by"),
        (brokers(5, 1, "chain"), brokers(5, 1, "chain", without=(0,)), "delete the channel first"),
        (brokers(7, 1, "chain"), brokers(7, 2, "chain"), "draws its chains"),
        (brokers(4, 1, "ab"), replace(brokers(5, 1, "ab"), epoch=3), "does not follow epoch 1"),
    ],
)
def test_successor_more_than_one_step_is_refused(
    present: Manifest, following: Manifest, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        check_successor(present, replace(following, epoch=max(2, following.epoch)))


@pytest.mark.parametrize("present", [brokers(4, 1, "total"), brokers(4, 1, "ab", "total-crash")])
def test_successor_in_a_log_may_leave_out_epochs_that_were_never_decided(present: Manifest) -> None:
    kinds = [channel.policy.name for channel in present.channels]
    check_successor(present, replace(present, epoch=5))
    check_successor(present, replace(brokers(5, 1, *kinds), epoch=5))
    with pytest.raises(UsageError, match="at once"):
        check_successor(present, replace(brokers(6, 1, *kinds), epoch=5))


def test_successor_with_brokers_in_another_order_is_refused() -> None:
    present = brokers(4, 1, "ab")
    with pytest.raises(UsageError, match="in another order"):
        check_successor(
            present,
            replace(
                brokers(5, 1, "ab"),
                brokers=(*present.brokers[::-1], brokers(5, 1).brokers[4]),
                epoch=2,
            ),
        )
