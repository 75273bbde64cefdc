"""Groups of consumers in a manifest: what could not work is refused with a way out."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.manifest.groups import check_companion, companion_of, make_companion
from quorumcast.manifest.manifest import ChannelEntry, Group, Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.validation import check_manifest
from quorumcast.testing.cells import CellSetup

TOTAL = Policy.named("total")
GROUP = Group("billing", ("bob", "carol"), max_attempts=3, dead_letter="dead")


def cell(group: Group = GROUP, **changes: object) -> Manifest:
    entries = {
        "orders": ChannelEntry(Channel("orders"), TOTAL, groups=(group,)),
        "orders/subscriptions": ChannelEntry(Channel("orders/subscriptions"), TOTAL),
        "dead": ChannelEntry(Channel("dead"), TOTAL),
    }
    for name, entry in changes.items():
        if entry is None:
            del entries[name.replace("__", "/")]
        else:
            entries[name.replace("__", "/")] = entry  # type: ignore[assignment]
    plan = CellSetup(channels={"other": "total"})
    return replace(plan.manifest, channels=tuple(entries.values()))


def test_group_that_can_work_is_taken() -> None:
    check_manifest(cell())
    check_manifest(cell(replace(GROUP, members=("*",))))


ORDERS = ChannelEntry(Channel("orders"), TOTAL, groups=(GROUP,))
DEAD = ChannelEntry(Channel("dead"), TOTAL)
COMPANION = ChannelEntry(companion_of("orders"), TOTAL)


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        (cell(replace(GROUP, members=())), "has 0 members"),
        (cell(replace(GROUP, members=("zoe",))), "'zoe', which is not a client"),
        (cell(replace(GROUP, members=("bob#1",))), "'bob#1', which is not a client"),
        (cell(replace(GROUP, name="a/b")), "group name"),
        (cell(replace(GROUP, max_attempts=-1)), "tries -1 times"),
        (cell(replace(GROUP, max_attempts=0)), "tries without end"),
        (cell(replace(GROUP, ack_timeout_ms=0)), "time-out of 0 ms"),
        (cell(replace(GROUP, dead_letter="nowhere")), "create it first"),
        (cell(replace(GROUP, dead_letter="orders")), "create it first"),
        (cell(orders__subscriptions=None), "no companion"),
        (cell(orders__subscriptions=replace(COMPANION, publishers=("bob",))), "both rights"),
        (cell(orders__subscriptions=replace(COMPANION, policy=Policy.named("brb"))), "total order"),
        (cell(orders__subscriptions=replace(COMPANION, schema=(("a", "int8"),))), "carry bytes"),
        (cell(orders=replace(ORDERS, policy=Policy.named("brb"))), "no total order"),
        (cell(orders=replace(ORDERS, subscribers=("bob",))), "may not subscribe to 'orders'"),
        (cell(orders=replace(ORDERS, groups=(GROUP, GROUP))), "appears twice"),
        (cell(dead=replace(DEAD, publishers=("bob",))), "may not publish on 'dead'"),
        (cell(dead=replace(DEAD, schema=(("a", "int8"),))), "has columns"),
    ],
)
def test_group_that_could_not_work_is_refused(manifest: Manifest, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_manifest(manifest)


def test_companion_is_for_those_who_may_subscribe() -> None:
    made = make_companion(replace(ORDERS, subscribers=("bob",)))
    assert (made.name, made.policy) == ("orders/subscriptions", TOTAL)
    assert made.publishers == made.subscribers == ("bob",)
    with pytest.raises(UsageError, match="no total order"):
        make_companion(replace(ORDERS, policy=Policy.named("ab")))
    with pytest.raises(UsageError, match="shorter name"):
        make_companion(replace(ORDERS, name=Channel("o" * 120)))


def test_channel_without_companion_says_how_to_make_one() -> None:
    manifest = cell(orders__subscriptions=None, orders=replace(ORDERS, groups=()))
    with pytest.raises(UsageError, match="channel change orders --subscriptions"):
        check_companion(manifest, manifest.channels[0])
