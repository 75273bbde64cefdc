"""`epoch remove-client`: the identity of a client is revoked while the cell runs."""

import json
from pathlib import Path

import pytest
from tests.cli.shell import answer, running, started
from tests.runtime.world import PATIENCE_S

from quorumcast.cli.main import main
from quorumcast.manifest.files import read_manifest

pytestmark = pytest.mark.runtime

CHANNELS = ["orders:total+durable", "news:ab+history:20:alice", "chained:chain", "audit:brb"]


def test_removed_client_is_refused_and_what_it_published_stays_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receipt = tmp_path / "receipt.json"
    with running(tmp_path / "cell", CHANNELS) as cell:
        here = ["-m", str(cell)]
        capsys.readouterr()
        for channel in ("orders", "news", "chained", "audit"):
            answer(capsys, "publish", channel, "before", *here, "-i", "alice")
        options = ["--from", "earliest", "--count", "1", "--receipt", str(receipt)]
        assert main(["subscribe", "orders", *here, "-i", "bob", *options]) == 0
        capsys.readouterr()
        ticks = ["--rate", "20", "--count", "100000"]
        with started("publish", "orders", "tick", *here, "-i", "alice", *ticks) as publisher:
            with started("subscribe", "orders", *here, "-i", "bob", "--count", "1") as listener:
                assert listener.wait(PATIENCE_S) == 0
            removed = answer(capsys, "epoch", "remove-client", "alice", *here)
            assert (removed["epoch"], removed["clients"]) == (2, ["bob"])
            assert removed["taken"] == ["broker-1", "broker-2", "broker-3", "broker-4"]
            assert publisher.wait(PATIENCE_S) == 2
            assert publisher.stderr is not None
            assert "'alice' is not in epoch 2 of cell 'cell'" in publisher.stderr.read()
        # Nobody but alice might publish on "news"; now nobody may.
        entry = read_manifest(cell / "manifest.json").channel("news")
        assert entry is not None
        assert entry.publishers == ()
        stolen = cell / "alice.epoch-1.old"
        assert main(["publish", "orders", "x", *here, "-i", str(stolen)]) == 2
        assert "'alice' is not in epoch 2" in capsys.readouterr().err
        # With the old manifest as well, brokers refuse its keys.
        former = ["-m", str(cell / "epochs" / "1.json"), "-i", str(stolen), "--timeout", "2"]
        assert main(["publish", "orders", "x", *former]) == 2
        assert "runs epoch 2 and yours is epoch 1" in capsys.readouterr().err
        answer(capsys, "publish", "audit", "the cell goes on", *here, "-i", "bob")
        assert main(["replay", "orders", *here, "-i", "bob", "--json"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert {json.loads(line)["publisher"] for line in lines} == {"alice"}
        assert answer(capsys, "verify", receipt, *here)["valid"] is True


def test_client_that_cannot_be_removed_is_told_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell, here = tmp_path / "cell", ["-m", str(tmp_path / "cell")]
    assert main(["init", str(cell), "--channel", "orders:total", "--clients", "alice,bob"]) == 0
    assert main(["epoch", "remove-client", "carol", *here]) == 2
    assert "there is no client 'carol' in cell 'cell'; its clients: alice, bob" in (
        capsys.readouterr().err
    )
    change = ["channel", "change", "orders", "--subscriptions", "--share", "billing=bob"]
    assert main([*change, "--no-wait", *here]) == 0
    assert main(["epoch", "remove-client", "bob", *here]) == 2
    assert "'bob' is the only member of the shared subscription 'billing'" in (
        capsys.readouterr().err
    )
    assert (cell / "bob.identity").exists()
    assert main([*change[:-1], "billing=alice,bob", "--no-wait", *here]) == 0
    capsys.readouterr()
    assert answer(capsys, "epoch", "remove-client", "bob", "--no-wait", *here)["taken"] == []
    entry = read_manifest(cell / "manifest.json").channel("orders")
    assert entry is not None
    assert [group.members for group in entry.groups] == [("alice",)]
