"""Whatever a user gets wrong: one sentence that says what to do, exit code 2, no traceback."""

import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.shell import answer, base_port, imported, sentence
from tests.runtime.world import PATIENCE_S

from quorumcast.cli.common import default_status_url
from quorumcast.cli.main import command_tree, main
from quorumcast.core.ids import NodeId
from quorumcast.manifest.manifest import BrokerEntry
from quorumcast.runtime.broker.epochs import KeptEpoch, save_epoch

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cells") / "cell"
    place = ["init", str(directory), "--base-port", str(base_port())]
    assert main([*place, "--channel", "orders:brb", "--digest", "sha256"]) == 0
    return directory


@pytest.fixture(scope="module")
def other_cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cells") / "other"
    assert main(["init", str(directory), "--digest", "sha256"]) == 0
    return directory


def test_broker_does_not_start_with_what_it_kept_in_another_cell(
    capsys: pytest.CaptureFixture[str], cell: Path, other_cell: Path, tmp_path: Path
) -> None:
    kept = KeptEpoch((other_cell / "manifest.json").read_bytes())
    save_epoch(tmp_path / "data" / "broker-1.epoch", kept)
    line = sentence(capsys, "broker", "-m", cell, "-i", "broker-1", "--data", tmp_path / "data")
    assert "data holds what broker-1 kept in a cell of another operator; move it away" in line


@pytest.mark.parametrize("command", [["up"], ["status", "-m"], ["publish", "c", "x", "-m"]])
def test_manifest_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    extra = ["-i", "alice"] if command[0] == "publish" else []
    assert "there is no manifest at" in sentence(capsys, *command, tmp_path, *extra)


def test_manifest_altered(capsys: pytest.CaptureFixture[str], cell: Path, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text((cell / "manifest.json").read_text().replace('"f": 1', '"f": 0'))
    assert "was altered after its operator signed it" in sentence(capsys, "up", tmp_path)
    path.write_text("{}")
    assert "is not a manifest of this version" in sentence(capsys, "epoch", "show", "-m", path)
    path.write_text("no")
    assert "is not JSON" in sentence(capsys, "verify", path, "-m", path).replace(
        "is neither a receipt nor evidence", "is not JSON"
    )


def test_identity_of_another_cell(
    capsys: pytest.CaptureFixture[str], cell: Path, other_cell: Path
) -> None:
    for command in (["publish", "orders", "x"], ["subscribe", "orders"]):
        line = sentence(capsys, *command, "-m", cell, "-i", other_cell / "alice.identity")
        assert "has other keys than epoch 1 of cell 'cell'" in line
    line = sentence(capsys, "broker", "-m", cell, "-i", other_cell / "broker-1.identity")
    assert "has other keys" in line


def test_identity_missing_unnamed_or_readable_by_others(
    capsys: pytest.CaptureFixture[str], cell: Path, tmp_path: Path
) -> None:
    assert "who are you?" in sentence(capsys, "publish", "orders", "x", "-m", cell)
    line = sentence(capsys, "publish", "orders", "x", "-m", cell, "-i", "nobody")
    assert "there is no identity 'nobody'; cell 'cell' has the clients alice, bob" in line
    assert "epoch add-client" in line
    line = sentence(capsys, "publish", "orders", "x", "-m", cell, "-i", tmp_path / "nobody")
    assert "there is no identity at" in line
    line = sentence(capsys, "publish", "orders", "x", "-m", cell, "-i", cell / "manifest.json")
    assert "manifest.json is not an identity" in line
    signed = ["--operator", tmp_path / "operator"]
    line = sentence(capsys, "channel", "create", "q:ab", "-m", cell, *signed)
    assert "operator; put back the file that 'quorumcast' made there, or name another" in line
    assert "has the brokers broker-1" in sentence(capsys, "broker", "-m", cell, "-i", "nobody")
    open_ = tmp_path / "alice.identity"
    open_.write_text((cell / "alice.identity").read_text())
    open_.chmod(0o644)
    assert "chmod 600" in sentence(capsys, "publish", "orders", "x", "-m", cell, "-i", open_)


def test_client_identity_as_broker_and_the_reverse(
    capsys: pytest.CaptureFixture[str], cell: Path
) -> None:
    assert "is a client of the cell" in sentence(capsys, "broker", "-m", cell, "-i", "alice")
    line = sentence(capsys, "publish", "orders", "x", "-m", cell, "-i", "broker-1")
    assert "is a broker of the cell" in line


def test_address_where_no_broker_listens(capsys: pytest.CaptureFixture[str], cell: Path) -> None:
    arguments = ["publish", "orders", "x", "-m", cell, "-i", "alice", "--timeout", "0.3"]
    assert "brokers can be reached and 3 are needed" in sentence(capsys, *arguments)
    verdict = answer(capsys, "status", "-m", cell, code=1)["verdict"]
    says = f"cell cell is not well: no broker is up; start it with 'quorumcast up {cell}'"
    assert (verdict["well"], verdict["says"]) == (False, says)
    line = sentence(capsys, "restart", "-m", cell)
    assert line.endswith(f"no broker of cell 'cell' is up; start it with 'quorumcast up {cell}'")
    line = sentence(capsys, "status", "-m", cell, "--url", "broker-9=http://localhost:1")
    assert "there is no broker 'broker-9' in cell 'cell'; it has broker-1" in line
    line = sentence(capsys, "faults", "set", "broker-1", "alter", "-m", cell)
    assert "no status page answers" in line
    assert "there is no broker 'x'" in sentence(capsys, "faults", "clear", "x", "-m", cell)


def test_ports_that_another_cell_uses(
    capsys: pytest.CaptureFixture[str], cell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = {"node": "broker-1", "cell": "other", "epoch": 1, "time": 0.0}
    monkeypatch.setattr("quorumcast.cli.common.ask", lambda url, **_: page)
    monkeypatch.setattr("quorumcast.cli.cell.operations.ask", lambda url, **_: page)
    verdict = answer(capsys, "status", "-m", cell, code=1)["verdict"]
    taken = "cell 'other' runs on the ports of cell 'cell'"
    helps = "stop it, or make 'cell' anew on other ports, with --base-port"
    assert verdict["says"] == f"cell cell is not well: {taken}; {helps}"
    assert f"{taken}; {helps}" in sentence(capsys, "up", cell)
    line = sentence(capsys, "faults", "set", "broker-1", "alter", "-m", cell)
    assert "is the page of broker-1 of cell 'other'; say where that of broker-1 is" in line


@pytest.mark.parametrize(("port", "page"), [(7100, 8100), (64_535, 65_535), (64_536, 63_536)])
def test_status_pages_are_at_ports_that_exist(port: int, page: int) -> None:
    broker = BrokerEntry(NodeId("broker-1"), "127.0.0.1", port, bytes(32), bytes(32))
    assert default_status_url(broker) == f"http://127.0.0.1:{page}"


def test_metrics_port_that_does_not_exist(capsys: pytest.CaptureFixture[str], cell: Path) -> None:
    line = sentence(capsys, "broker", "-m", cell, "-i", "broker-1", "--metrics-port", "70000")
    assert "--metrics-port" in line
    assert "70000 is not in the range 0<=x<=65535" in line


def test_port_in_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        main(["init", str(tmp_path), "--base-port", str(port), "--digest", "sha256"])
        capsys.readouterr()
        done = subprocess.run(
            [sys.executable, "-m", "quorumcast", "up", str(tmp_path), "--only", "broker-1"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "broker-1 cannot start" in line
    assert str(port) in line


def test_publish_nothing_or_too_often(capsys: pytest.CaptureFixture[str], cell: Path) -> None:
    assert "--count is 0: give a whole number of 1 or more" in sentence(
        capsys, "publish", "orders", "x", "-m", cell, "-i", "alice", "--count", "0"
    )
    assert "--receipt needs an end" in sentence(
        capsys, "subscribe", "orders", "-m", cell, "-i", "bob", "--receipt", "r.json"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["publish", "orders", "x", "--valid-for", "-1"], "--valid-for is -1.0: give a finite"),
        (["publish", "orders", "x", "--valid-for", "1e9"], "--valid-for is 1000000000.0: the long"),
        (["publish", "orders", "x", "--rate", "nan"], "--rate is nan: give events per second"),
        (["publish", "orders", "-", "--format", "xml"], "--format is 'xml': choose one of lines, "),
        (["publish", "orders", "x", "--format", "csv"], "--format is for --file and '-'; leave"),
        (["subscribe", "orders", "--format", "xml"], "--format is 'xml': choose one of lines, bi"),
        (["subscribe", "orders", "--format", "csv", "--json"], "--json and --format do not go tog"),
        (
            ["replay", "orders/**", "--format", "csv"],
            "--format needs a single channel, because tho",
        ),
        (["subscribe", "orders", "--name", "n", "--format", "parquet"], "acknowledged before they"),
        (["publish", "orders", "--file", "none"], "none cannot be read (No such file or directo"),
        (["publish", "orders", "x", "--timeout", "-1"], "--timeout is -1: give a number of"),
        (["subscribe", "orders", "--timeout", "nan"], "--timeout is nan: give a number of"),
        (["subscribe", "orders", "--queue", "0"], "--queue is 0: give a whole number of 1 or"),
        (["subscribe", "orders", "--overflow", "all"], "--overflow is 'all': choose one of 'wait'"),
        (["subscribe", "orders", "--no-follow", "--idle", "nan"], "--idle is nan: give a"),
        (["replay", "orders", "--idle", "inf"], "--idle is inf: give a number"),
        (["subscribe", "orders", "--count", "-4"], "--count is -4: give a whole number of 1 or"),
        (["replay", "orders", "--timeout", "inf"], "--timeout is inf: give a number of"),
        (["subscriptions", "list", "orders", "--timeout", "-3"], "--timeout is -3: give a number"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_number_that_cannot_be_is_refused_by_the_name_of_its_option(
    capsys: pytest.CaptureFixture[str], cell: Path, arguments: list[str], expected: str
) -> None:
    assert expected in sentence(capsys, *arguments, "-m", cell, "-i", "bob")


def test_subscribe_receipt_evidence_or_observations_in_no_directory(
    capsys: pytest.CaptureFixture[str], cell: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["subscribe", "orders", "-m", cell, "-i", "bob", "--count", "1"]
    line = sentence(capsys, *command, "--receipt", tmp_path / "none" / "r.json")
    assert "has no directory" in line
    assert "is a directory" in sentence(capsys, *command, "--receipt", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda path, mode: path != tmp_path)
        line = sentence(capsys, *command, "--receipt", tmp_path / "r.json")
    assert "r.json may not be written by this user; name a file in a directory that" in line
    (tmp_path / "file").write_text("")
    assert "cannot be used" in sentence(capsys, *command, "--evidence", tmp_path / "file")
    assert "cannot be used" in sentence(capsys, *command, "--observe", tmp_path / "file")


def test_subscribe_and_replay_from_nowhere(capsys: pytest.CaptureFixture[str], cell: Path) -> None:
    who = ["-m", cell, "-i", "bob"]
    line = sentence(capsys, "subscribe", "orders", "--from", "yesterday", *who)
    assert "--from is 'earliest', 'latest', a time such as 2026-11-01T12:00:00Z, some" in line
    assert "some time ago such as 5m (s, m, h and d are units), or a position of 1 or" in line
    assert "more, not 'yesterday'" in line
    line = sentence(capsys, "replay", "orders", "--from", "latest", *who)
    assert "--from is 'earliest', a time such as" in line
    assert "not 'latest'" in line
    assert "--to is" in sentence(capsys, "replay", "orders", "--to", "0", *who)
    line = sentence(capsys, "replay", "orders", "--from", "9", "--to", "3", *who)
    assert "--to 3 lies before --from 9; swap them" in line
    assert "--count is -1: give" in sentence(capsys, "replay", "orders", "--count", "-1", *who)


@pytest.fixture(scope="module")
def busy_cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cells") / "busy"
    channels = ["orders:ab+history:20", "trades:total", "backup:total-crash+durable"]
    options = [text for channel in channels for text in ("--channel", channel)]
    place = ["init", str(directory), "--digest", "sha256", "--base-port", "9"]
    assert main([*place, *options]) == 0
    create = ["channel", "create", "prices:brb", "--column", "price:float64", "-m", str(directory)]
    assert main(create) == 0
    return directory


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "nothing"], "there is no channel 'nothing' in cell 'busy'; its channels are"),
        (["create", "orders:brb"], "there is a channel 'orders' already"),
        (["create", "more:gossip"], "there is no policy 'gossip'"),
        (["create", "more:brb::nobody"], "gives rights to 'nobody', which is not a client"),
        (["create", "more:brb", "--column", "price"], "--column takes NAME:TYPE"),
        (["create", "more:brb", "--column", "price:money"], "the unknown type 'money'; choose"),
        (
            ["create", "more:brb", "--limit", "speed=9"],
            "there is no limit 'speed'; choose one of retained",
        ),
        (["create", "more:brb", "--limit", "que=9"], "no limit 'que'; did you mean 'queue'?"),
        (["create", "more:brb", "--limit", "queue=few"], "NAME=NUMBER with a whole number, such"),
        (["create", "more:brb", "--limit", "queue"], "such as queue=100, not 'queue'"),
        (["create", "more:brb", "--limit", "window=9000"], "limit 'vote_window' is 8192, too few"),
        (["create", "more:total+durable"], "was created without a store; make a cell"),
        (["create", "more:total", "--limit", "pipeline=20"], "give it theirs, 8 and 64, or less"),
        (["change", "orders"], "nothing to change; use --publishers"),
        (["change", "nothing", "--publishers", "bob"], "there is no channel 'nothing'"),
        (["change", "orders", "--policy", "brb"], "the policy of a channel stays"),
        (["change", "prices", "--remove-column", "price"], "a column stays, because publications"),
        (["change", "prices", "--column", "price:int8"], "has a column 'price' already, of type"),
        (["change", "orders", "--column", "price:int8"], "carries bytes, and what is retained is"),
        (["change", "orders", "--publishers", "zoe"], "gives rights to 'zoe'"),
        (["change", "orders", "--limit", "segment=64"], "limit 'segment' of channel 'orders'"),
        (["change", "trades", "--retain", "9"], "write --retain 1024 or more, or a unit behind"),
        (["change", "trades", "--retain", "everything"], "kept in the memory of brokers"),
        (["change", "orders", "--retain", "7 moons"], "an age such as 7d (s, m, h, d and w"),
        (["create", "more:brb", "--retain", "7d", "--retain", "8d"], "says again what another"),
        (["delete", "orders"], "and everything that brokers hold of it; add --yes"),
        (["delete", "nothing", "--yes"], "there is no channel 'nothing'"),
    ],
)
def test_channel_that_cannot_be_so(
    capsys: pytest.CaptureFixture[str], busy_cell: Path, arguments: list[str], expected: str
) -> None:
    before = (busy_cell / "manifest.json").read_bytes()
    assert expected in sentence(capsys, "channel", *arguments, "-m", busy_cell)
    assert (busy_cell / "manifest.json").read_bytes() == before


def test_channel_that_needs_a_larger_cell(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cell = tmp_path / "small"
    options = ["--brokers", "3", "--f", "1", "--channel", "a:direct", "--digest", "sha256"]
    assert main(["init", str(cell), *options]) == 0
    capsys.readouterr()
    line = sentence(capsys, "channel", "create", "b:total", "-m", cell)
    assert "policy 'total' needs 4 brokers to withstand f=1, and cell 'small' has 3" in line
    assert "use direct or direct-crash or total-crash, or make a larger cell" in line


def test_channel_of_a_cell_that_is_down_is_changed_at_once(
    capsys: pytest.CaptureFixture[str], busy_cell: Path
) -> None:
    arguments = ["channel", "change", "orders", "--subscribers", "-", "--publishers", "alice"]
    retain = ["--retain", "9000", "--retain", "7d"]
    assert main([*arguments, *retain, "-m", str(busy_cell), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["channel"]["retention"] == "7 days, 9,000 publications, 64 MiB"
    assert (done["channel"]["publishers"], done["channel"]["subscribers"]) == (["alice"], [])
    assert (done["taken"], done["channel"]["limits"]["retained_publications"]) == ({}, 9000)
    assert main(["channel", "list", "-m", str(busy_cell)]) == 0
    text = capsys.readouterr().out
    assert "nobody" in text
    assert "publications" in text  # what is on disk


def test_channel_pattern_that_matches_nothing_is_told_in_a_sentence(
    capsys: pytest.CaptureFixture[str], busy_cell: Path
) -> None:
    assert main(["channel", "list", "plant/*", "-m", str(busy_cell)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("no channel of cell 'busy' matches 'plant/*'; its channels are: orders,")
    assert main(["channel", "list", "plant/*", "-m", str(busy_cell), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["channels"] == []


def test_channel_without_the_operator(
    capsys: pytest.CaptureFixture[str], cell: Path, other_cell: Path
) -> None:
    wrong = ["--operator", other_cell / "operator.identity"]
    line = sentence(capsys, "channel", "create", "more:brb", "-m", cell, *wrong)
    assert "is not the operator of cell 'cell'" in line


def test_doctor_of_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "there is no manifest at" in sentence(capsys, "doctor", tmp_path)


def test_fault_that_no_broker_commits(capsys: pytest.CaptureFixture[str], cell: Path) -> None:
    for fault, expected in (
        ("dance", "there is no fault 'dance'; a broker can commit "),
        ("skip-broker", "'skip-broker' is a publisher's fault; a broker can commit "),
    ):
        line = sentence(capsys, "faults", "set", "broker-1", fault, "-m", cell)
        assert expected in line
        assert "skip-broker" not in line.partition("can commit")[2]


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", b"\xff", "x", "-i", "alice"],
        ["publish", "orders", "x", "-i", b"\xff"],
        ["subscribe", b"\xff", "-i", "bob"],
        ["faults", "set", b"\xff", "alter"],
        ["faults", "set", "broker-1", b"\xff"],
        [b"\xff"],
        ["epoch", "add-client", b"\xff"],
        ["epoch", "add-channel", b"\xff"],
    ],
    ids=str,
)
def test_argument_that_is_not_utf_8(cell: Path, arguments: list[str | bytes]) -> None:
    manifest = ["-m", str(cell)] if len(arguments) > 1 else []
    done = subprocess.run(
        [sys.executable, "-m", "quorumcast", *arguments, *manifest,
         *(["--timeout", "0.3"] if arguments[0] in ("publish", "subscribe") else [])],
        capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(b"quorumcast: ")


def test_verify_missing_file(capsys: pytest.CaptureFixture[str], cell: Path) -> None:
    assert "cannot be read" in sentence(capsys, "verify", cell / "none.json", "-m", cell)


def test_bench_and_sim_and_demo_wrong_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no policy 'x'" in sentence(capsys, "bench", "--policy", "x")
    assert "there is no suite 'x'" in sentence(capsys, "bench", "--suite", "x")
    line = sentence(capsys, "bench", "--policy", "ab", "--alpha", "10")
    assert line.endswith("--alpha is for policies with histories; leave it out of 'ab'")
    meant = {
        ("bench", "--suite", "freemann"): "there is no suite 'freemann'; did you mean 'freeman'?",
        ("bench", "--fault", "altr"): "there is no fault 'altr'; did you mean 'alter'?",
        ("sim", "--adversary", "altr"): "there is no adversary 'altr'; did you mean 'alter'?",
        ("sim", "--variant", "no-dedp"): "there is no variant 'no-dedp'; did you mean 'no-dedup'?",
        ("faults", "set", "broker-1", "altr"): "no fault 'altr'; did you mean 'alter'?",
    }
    for words, expected in meant.items():
        assert expected in sentence(capsys, *words)
    assert "choose one of dt1, dt2, ten" in sentence(capsys, "bench", "--workload", "nowhere")
    assert "a soak needs total order" in sentence(capsys, "bench", "--suite", "soak")
    line = sentence(capsys, "bench", "--suite", "soak", "--observe", "log")
    assert "--observe is for single runs and the suites 'freeman' and 'faults'" in line
    assert "cannot be used" in sentence(capsys, "bench", "--observe", __file__)
    assert "--seeds is 1 or more" in sentence(capsys, "sim", "--seeds", "0")
    assert "go with --mutants" in sentence(capsys, "sim", "--only", "labels-number")
    assert "goes with --coverage" in sentence(capsys, "sim", "--steer")
    assert "policy of a cell" in sentence(capsys, "sim", "--coverage", "--policy", "relay")
    assert "no mistake 'x'" in sentence(capsys, "sim", "--mutants", "--only", "x")
    assert "--seconds is 1 to 600" in sentence(capsys, "demo", "--seconds", "0")


def test_unknown_command_and_log_level(capsys: pytest.CaptureFixture[str], cell: Path) -> None:
    assert "No such command" in sentence(capsys, "dance")
    assert "--log is one of" in sentence(capsys, "up", cell, "--log", "loud")


def commands(group: Any, *path: str) -> Iterator[list[str]]:
    """Every command that there is, below its groups."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield [*path, name]


COMMANDS = sorted(commands(typer.main.get_command(command_tree())))


def test_commands_are_found_below_their_groups() -> None:
    assert ["publish"] in COMMANDS
    assert ["members", "rotate"] in COMMANDS


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_json(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert main([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example:" in text
    assert f"quorumcast {' '.join(command)}" in " ".join(text.split())
    assert "--json" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("quorumcast 0.")


def test_help_imports_no_command_and_no_option_parser() -> None:
    loaded = imported("--help")
    assert not loaded & {"typer", "rich", "msgspec", "asyncio", "pyarrow", "cryptography"}
    ours = {name for name in loaded if name.startswith("quorumcast.cli.")}
    assert ours == {"quorumcast.cli.main"}


def test_help_names_every_command_within_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-h"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    named = {line.split()[0] for line in lines if line.startswith("  ")}
    assert named >= {command[0] for command in COMMANDS}


def test_identity_of_somebody_else_under_this_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    directory = tmp_path / "cell"
    assert main(["init", str(directory), "--clients", "alice,bob", "--digest", "sha256"]) == 0
    (directory / "alice.identity").rename(directory / "bob.identity")
    capsys.readouterr()
    line = sentence(capsys, "publish", "orders", "x", "-m", directory, "-i", "bob")
    assert "bob.identity is the identity of 'alice', not of 'bob'; rename it" in line


@pytest.mark.parametrize("wrong", [["-i", "alice"], ["-i", "broker-1", "--fault", "alter"]])
def test_broker_that_is_refused_leaves_no_directory(
    cell: Path, tmp_path: Path, wrong: list[str]
) -> None:
    places = ["--data", tmp_path / "data", "--evidence", tmp_path / "evidence"]
    who = cell / f"{wrong[1]}.identity"
    assert main([str(word) for word in ("broker", "-m", cell, "-i", who, *wrong[2:], *places)]) == 2
    assert list(tmp_path.iterdir()) == []


def test_broker_whose_directory_cannot_be_made(
    capsys: pytest.CaptureFixture[str], cell: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "data"
    line = sentence(capsys, "broker", "-m", cell, "-i", "broker-1", "--data", place)
    assert f"{place} cannot be used (Not a directory); choose another directory" in line


def test_output_that_is_closed_is_no_error(cell: Path) -> None:
    for end in (">&-", "| true"):
        shell = f"{shlex.quote(sys.executable)} -m quorumcast epoch show -m {cell} {end}"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", shell],
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_epoch_show_leaves_out_what_is_empty(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["init", str(tmp_path / "c"), "--clients", "", "--digest", "sha256"]) == 0
    capsys.readouterr()
    assert main(["epoch", "show", "-m", str(tmp_path / "c")]) == 0
    shown = dict(text.split(maxsplit=1) for text in capsys.readouterr().out.splitlines())
    assert shown["clients"] == "none"
    assert "warning" not in shown


def test_interrupted_demo_names_its_directory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("quorumcast.testing.cluster.LocalCluster.__enter__", interrupted)
    assert main(["demo", "--dir", str(tmp_path), "--no-spark"]) == 130
    assert f"what the demo has written is in {tmp_path}" in capsys.readouterr().err
