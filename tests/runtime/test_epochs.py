"""New epochs at a running broker: channels that need a disk, and epochs that it refuses."""

from pathlib import Path

import msgspec
import pytest
from tests.runtime.test_broker import with_broker
from tests.runtime.world import until

from quorumcast.core.ids import Channel
from quorumcast.manifest.build import next_epoch
from quorumcast.manifest.files import sign_manifest, write_manifest
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.broker.broker import BrokerNode
from quorumcast.runtime.store.directory import look_at
from quorumcast.testing.cells import CellSetup

DURABLE = ChannelEntry(Channel("trades"), Policy.parse("total+durable"))


def give(node: BrokerNode, cell: CellSetup, manifest: Manifest) -> None:
    """Put an epoch where the broker reads it, and make it look."""
    write_manifest(node.settings.manifest, sign_manifest(manifest, cell.operator))
    node.read_manifest()


@pytest.mark.parametrize("place", [True, False])
def test_broker_first_channel_on_disk_opens_a_store_or_is_refused(
    tmp_path: Path, place: bool
) -> None:
    async def act(node: BrokerNode, cell: CellSetup) -> None:
        assert (node.store_status(), node.machine.logs()) == (None, {})
        following = next_epoch(node.manifest, channels=(*node.manifest.channels, DURABLE))
        give(node, cell, following)
        if place:
            await until(lambda: node.manifest.epoch == 2)
        # Without a disk the channel would promise what nobody keeps.
        assert node.manifest.epoch == (2 if place else 1)
        assert (tmp_path / "data" / "broker-1.store").exists() == place
        assert (node.store_status() is not None) == place
        assert list(node.machine.logs()) == (["byzantine"] if place else [])
        assert (node.disk_status() is not None) == place

    with_broker(tmp_path, act, data=tmp_path / "data" if place else None)


def test_broker_epoch_that_changes_a_policy_is_refused(tmp_path: Path) -> None:
    async def act(node: BrokerNode, cell: CellSetup) -> None:
        other = msgspec.structs.replace(node.manifest.channels[0], policy=Policy.named("brb"))
        give(node, cell, next_epoch(node.manifest, channels=(other,)))
        assert node.manifest.epoch == 1

    with_broker(tmp_path, act)


def test_broker_status_says_its_time_its_logs_and_its_disk(tmp_path: Path) -> None:
    async def act(node: BrokerNode, cell: CellSetup) -> None:
        status = node.control.status()
        assert isinstance(status.time, float)
        assert msgspec.to_builtins(status.logs) == {
            "byzantine": {
                "leader": "broker-1", "regency": 0, "decided": 0, "executed": 0, "checkpoint": 0,
                "forgotten": 0,
            }
        }  # fmt: skip
        assert status.disk is not None
        assert status.disk.writable
        assert status.disk.began_empty

    with_broker(tmp_path, act, Policy.parse("total+durable"), data=tmp_path / "data")


def test_look_at_a_directory_that_is_not_there_yet_writes_nothing(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    found = look_at(place, "broker-1")
    assert (found.writable, found.set_aside) == (True, [])
    assert not (tmp_path / "a").exists()
    place.mkdir(parents=True)
    for name in ("broker-1.store.damaged-1", "broker-1.store.damaged-1-wal", "broker-2.store"):
        (place / name).touch()
    assert look_at(place, "broker-1").set_aside == ["broker-1.store.damaged-1"]
