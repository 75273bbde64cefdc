"""The command line says when the cell is unreachable, lost and back; with real brokers."""

import subprocess
from collections.abc import Iterator

import pytest
from tests.cli.shell import started
from tests.runtime.world import PATIENCE_S

from quorumcast.testing import LocalCluster

pytestmark = pytest.mark.runtime


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stderr is not None
    return (text.rstrip() for text in process.stderr)


def test_publish_and_subscribe_tell_each_loss_and_each_return_once() -> None:
    with LocalCluster(channels={"orders": "ab", "quiet": "ab"}) as cluster:
        who = ["-m", cluster.directory, "--timeout", PATIENCE_S, "-i"]
        for name in ("broker-3", "broker-4"):
            cluster.kill(name)
        with (
            started("subscribe", "quiet", "--count", 1, *who, "bob") as subscribe,
            started("publish", "orders", "early", "--json", *who, "alice") as publish,
        ):
            told, said = lines(subscribe), lines(publish)
            for heard in (told, said):
                first = next(heard)
                assert first.startswith("cell 'test' cannot be reached yet (is it running?); ")
                assert "broker-3 (" in first
                assert first.endswith("; needed: 3 of 4; trying again")
            cluster.start_broker("broker-3")
            for heard in (told, said):
                assert next(heard).startswith("cell 'test' is reached; connected: broker-")
            assert (publish.wait(PATIENCE_S), list(said)) == (0, [])
            assert next(told) == "subscribed to quiet"
            cluster.kill("broker-3")
            assert next(told).startswith("cell 'test' is lost; connected: broker-")
            cluster.start_broker("broker-3")
            assert next(told).startswith("cell 'test' is back; connected: broker-")
            with started("publish", "quiet", "late", *who, "alice") as again:
                assert list(lines(again)) == ["published 1 on quiet"]
            printed, rest = subscribe.communicate(timeout=PATIENCE_S)
            assert (printed, rest) == ("late\n", "")
