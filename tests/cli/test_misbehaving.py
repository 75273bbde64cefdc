"""Publishers and subscribers that misbehave by `--fault`, in a cell of real processes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.shell import answer, brokers_up, line, running, said, sentence, started
from tests.runtime.world import PATIENCE_S, eventually

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cells") / "cell"
    channels = ["orders:ab+history:5", "private:ab:0:alice:alice"]
    with running(directory, channels, "alice,bob", "--allow-faults") as made:
        yield made


def test_publisher_that_equivocates_is_convicted_by_all_brokers(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lie = ("publish", "orders", *range(10), "--fault", "equivocating-publisher")
    with started(*lie, "-m", cell, "-i", "alice") as process:
        said(process, "alice misbehaves: equivocating-publisher")

        def convicted() -> bool:
            rows = brokers_up(capsys, cell)
            return all("alice" in row["accusations"] for row in rows.values())

        assert eventually(convicted)


def test_subscriber_that_asks_for_what_it_may_not_have_gets_what_it_may(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    who = ("-m", cell, "-i", "bob", "--json")
    lie = ("--fault", "unauthorised", "--percent", 50)
    with started("subscribe", "orders", *who, *lie, "--count", 1) as process:
        said(process, "subscribed to orders")
        assert answer(capsys, "publish", "orders", "honest", "-m", cell, "-i", "bob")
        assert line(process)["payload"] == "honest"
        assert process.wait(PATIENCE_S) == 0
    assert all("no-right" in row["drops"] for row in brokers_up(capsys, cell).values())


def test_fault_of_a_client_needs_brokers_that_allow_faults(
    cell: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask(url: str) -> dict[str, Any]:
        asked.append(url)
        return {"allowed": len(asked) != 2}

    monkeypatch.setattr("quorumcast.cli.clients.misbehaving.ask", ask)
    lie = ("publish", "orders", "x", "-m", cell, "-i", "alice", "--fault", "gaps")
    assert "broker-2 of this cell run without --allow-faults" in sentence(capsys, *lie)
    assert len(asked) == 4
    elsewhere = [f"--url=broker-{number}=http://127.0.0.1:1" for number in range(1, 5)]
    line = sentence(capsys, *lie, *elsewhere)
    assert (
        "0 status pages of brokers answer, and 3 of them must say that faults are allowed" in line
    )
    line = sentence(capsys, *lie, *elsewhere[:2])
    assert "2 status pages of brokers answer" in line


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["publish", "orders", "x", "--fault", "dance"], "there is no fault 'dance'; a publisher"),
        (["publish", "orders", "x", "--fault", "alter"], "'alter' is a broker's fault; a publish"),
        (["subscribe", "orders", "--fault", "gaps"], "'gaps' is a publisher's fault; a subscriber"),
        (["publish", "orders", "x", "--fault", "gaps", "--percent", "0"], "--percent is 1 to 100"),
        (
            ["publish", "orders", "x", "--fault", "gaps", "--victim", "bokrer-1"],
            "did you mean 'broker-1'?",
        ),
        (["publish", "orders", "x", "--percent", "50"], "--percent, --victim and --url go with"),
        (["subscribe", "orders", "--victim", "broker-1"], "--percent, --victim and --url go with"),
    ],
)
def test_fault_that_no_such_client_can_commit_is_refused(
    cell: Path, capsys: pytest.CaptureFixture[str], command: list[str], expected: str
) -> None:
    assert expected in sentence(capsys, *command, "-m", cell, "-i", "alice")


def test_subscriber_with_a_name_misbehaves_as_well(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(capsys, "channel", "create", "jobs:total", "--subscriptions", "-m", cell)
    who = ("-m", cell, "-i", "bob", "--json")
    lie = ("subscribe", "jobs", "--name", "worker", "--count", 1, "--fault", "pull-flood")
    with started(*lie, *who) as process:
        said(process, "bob misbehaves: pull-flood")
        said(process, "subscribed to jobs as worker")
        assert answer(capsys, "publish", "jobs", "one", "-m", cell, "-i", "alice")
        assert line(process)["payload"] == "one"
        assert process.wait(PATIENCE_S) == 0
