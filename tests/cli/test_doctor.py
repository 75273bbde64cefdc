"""`quorumcast doctor`: a well cell, cells with something wrong, and cells that are down."""

import asyncio
import datetime
import io
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from tests.cli.shell import answer, base_port, line, running, started
from tests.runtime.world import PATIENCE_S, run

from quorumcast.cli.cell.checks import check_certificates
from quorumcast.cli.cell.doctor import ASKING_S, ask_brokers
from quorumcast.cli.cell.live_checks import check_brokers, judge_cell, unsettled
from quorumcast.cli.cell.operations import STATUS_WIDTH, predicate_lines, status_table
from quorumcast.cli.main import main
from quorumcast.crypto.directory import Address
from quorumcast.manifest.files import read_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.broker.http import HttpServer, json_response
from quorumcast.runtime.links.probe import probe

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cells") / "cell"
    channels = ["trades:total+durable", "orders:ab"]
    with running(directory, channels, "alice", "--allow-faults") as made:
        yield made


def make(directory: Path, *options: object) -> Path:
    """A cell that nobody starts."""
    place = ["init", str(directory), "--base-port", str(base_port()), "--digest", "sha256"]
    assert main([*place, *map(str, options)]) == 0
    return directory


def found(report: Any, level: str) -> dict[str, str]:
    """What was found, by whom it is about."""
    return {f["about"]: f["says"] for f in report["findings"] if f["level"] == level}


def examined(
    capsys: pytest.CaptureFixture[str], cell: Path, wanted: Callable[[Any], bool]
) -> dict[str, Any]:
    """What the doctor finds, as soon as it is this: a broker that is slow looks ill for a while."""
    while True:
        code = main(["doctor", str(cell), "--json"])
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert code == (0 if report["healthy"] else 1)
        if wanted(report):
            return report


def is_well(report: Any) -> bool:
    return not found(report, "error") and not found(report, "warning")


def test_running_cell_is_well(cell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "publish", "trades", "x", "-m", cell, "-i", "alice")
    report = examined(capsys, cell, is_well)
    assert report["healthy"]
    well = found(report, "ok")
    assert well["quorum"] == "4 of 4 brokers answer; 1 more may fail"
    while main(["status", "-m", str(cell)]) != 0:  # a broker may be slow for a moment
        capsys.readouterr()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "cell cell is well: 4 of 4 brokers answer; 1 more may fail"
    assert re.match(r"broker-\d leads in regency \d", well["log byzantine"])
    assert well["channel trades"] == "total+durable, needs 4 brokers and has 4"
    text = ""
    while "0 errors, 0 warnings" not in text:
        main(["doctor", str(cell)])
        text = capsys.readouterr().out
        assert "what to do" in text


def test_lying_broker_is_a_warning(cell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "faults", "set", "broker-2", "alter", "-m", cell)
    says = "it misbehaves on request (alter)"
    report = examined(capsys, cell, lambda r: found(r, "warning").get("broker-2") == says)
    answer(capsys, "faults", "clear", "broker-2", "-m", cell)
    assert report["healthy"]


def test_store_set_aside_and_strange_identity_are_warnings(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aside, strange = cell / "data" / "broker-3.store.damaged-1", cell / "mallory.identity"
    blamed = {"broker-3", "mallory"}
    for path in (aside, strange):
        path.touch()
    try:
        report = examined(capsys, cell, lambda r: found(r, "warning").keys() == blamed)
    finally:
        aside.unlink()
        strange.unlink()
    assert "damaged and set aside: broker-3.store.damaged-1" in found(report, "warning")["broker-3"]
    assert "belongs to nobody in epoch 1" in found(report, "warning")["mallory"]


def test_broker_that_is_down_is_a_warning_and_two_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make(tmp_path / "c")
    capsys.readouterr()
    three = [text for number in (1, 2, 3) for text in ("--only", f"broker-{number}")]
    with started("up", made, *three, "--json") as up:
        while line(up).get("event") != "up":
            pass
        three_answer = "3 of 4 brokers answer; no other may fail"
        report = examined(capsys, made, lambda r: found(r, "ok").get("quorum") == three_answer)
        assert "refuses connections" in found(report, "warning")["broker-4"]
        stopped = answer(capsys, "status", "-m", made, code=1)["brokers"]["broker-3"]["pid"]
        os.kill(stopped, signal.SIGSTOP)  # neither dead nor alive
        try:
            two_answer = "2 of 4 brokers answer, and 3 are needed"
            report = examined(
                capsys, made, lambda r: two_answer in found(r, "error").get("quorum", "")
            )
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert "does not answer" in found(report, "warning")["broker-3"]


def test_cell_that_is_down_says_how_to_start_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make(tmp_path / "c")
    capsys.readouterr()
    report = answer(capsys, "doctor", made, code=1)
    (quorum,) = [f for f in report["findings"] if f["about"] == "quorum"]
    assert (quorum["level"], quorum["says"]) == (
        "error",
        "0 of 4 brokers answer, and 3 are needed",
    )
    assert f"quorumcast up {made}" in quorum["do"]
    assert len(found(report, "warning")) == 4


def test_files_that_are_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, other = make(tmp_path / "c"), make(tmp_path / "other")
    (made / "alice.identity").chmod(0o644)
    (made / "bob.identity").write_text((other / "bob.identity").read_text())
    (made / "operator.identity").write_text((other / "operator.identity").read_text())
    (made / "broker-1.identity").write_text((made / "broker-2.identity").read_text())
    capsys.readouterr()
    wrong = found(answer(capsys, "doctor", made, code=1), "error")
    assert "others than its owner have access" in wrong["alice"]
    assert "has other keys than epoch 1" in wrong["bob"]
    assert "is not the key that signed the manifest" in wrong["operator"]
    assert "is the identity of broker-2" in wrong["broker-1"]
    text = (made / "manifest.json").read_text()
    (made / "manifest.json").write_text(text.replace('"f": 1', '"f": 0'))
    wrong = found(answer(capsys, "doctor", made, code=1), "error")
    assert "was altered after its operator signed it" in wrong["manifest"]


def test_certificates_have_an_end(tmp_path: Path) -> None:
    manifest = read_manifest(make(tmp_path / "c", "--tls") / "manifest.json")
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    (fine,) = check_certificates(manifest, now)
    assert (fine.level, fine.about) == ("ok", "certificates")
    late = now.replace(year=2069, month=12)
    assert {finding.level for finding in check_certificates(manifest, late)} == {"warning"}
    assert {f.level for f in check_certificates(manifest, now.replace(year=2080))} == {"error"}
    swapped = msgspec.structs.replace(
        manifest.brokers[0], certificate=manifest.brokers[1].certificate
    )
    mixed = msgspec.structs.replace(manifest, brokers=(swapped, *manifest.brokers[1:]))
    (wrong,) = check_certificates(mixed, now)
    assert "made for another key" in wrong.says


def test_node_that_left_is_no_complaint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make(tmp_path / "c", "--brokers", 5, "--f", 1)
    assert main(["members", "remove", "broker-5", "-m", str(made), "--offline"]) == 0
    capsys.readouterr()
    report = answer(capsys, "doctor", made, code=1)
    assert found(report, "ok")["broker-5"].startswith("it left the cell in epoch 2")
    assert "broker-5" not in found(report, "warning")
    # A kept manifest that cannot be read tells nothing.
    (made / "epochs" / "1.json").write_text("{}")
    report = answer(capsys, "doctor", made, code=1)
    assert "belongs to nobody in epoch 2" in found(report, "warning")["broker-5"]


# ---------------------------------------------------------- without processes


class SlowBrokers:
    """Brokers that answer no greeting, and whose status pages never agree, in virtual time.

    `down` does not answer, `hanging` only the first request: each takes the whole time-out.
    """

    def __init__(self, rows: dict[str, Any], down: str, hanging: str) -> None:
        self.rows, self.down, self.hanging = rows, down, hanging
        self.clock_s = 0.0
        self.requests = 0
        self.greeted, self.asked = threading.Event(), threading.Event()

    async def probe(self, peer: str, address: object, keyring: object, timeout_s: float) -> str:
        assert timeout_s <= ASKING_S
        self.greeted.set()
        # Only a doctor that greets and asks at the same time gets any further.
        assert await asyncio.to_thread(self.asked.wait, PATIENCE_S)
        return f"{address} does not answer"

    def ask_all(self, urls: dict[str, str], timeout_s: float) -> dict[str, Any]:
        self.asked.set()
        assert self.greeted.wait(PATIENCE_S)
        silent = {self.down, self.hanging if self.requests else ""}
        self.requests += 1
        self.clock_s += timeout_s if silent & urls.keys() else 0.1
        return {name: {"up": False} if name in silent else self.rows[name] for name in urls}

    async def sleep(self, seconds: float) -> None:
        self.clock_s += seconds

    def monotonic(self) -> float:
        return self.clock_s


@pytest.mark.parametrize(
    ("down", "hanging", "requests"), [("", "", 3), ("broker-4", "", 1), ("", "broker-3", 2)]
)
def test_doctor_asks_all_at_once_and_within_its_time(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, down: str, hanging: str, requests: int
) -> None:
    answers = rows(manifest)
    answers["broker-1"]["epoch"] = 0  # so that brokers are asked again
    brokers = SlowBrokers(answers, down, hanging)
    monkeypatch.setattr("quorumcast.runtime.links.probe.probe", brokers.probe)
    monkeypatch.setattr("quorumcast.cli.cell.doctor.ask_all", brokers.ask_all)
    monkeypatch.setattr("quorumcast.cli.cell.doctor.asyncio.sleep", brokers.sleep)
    monkeypatch.setattr("quorumcast.cli.cell.doctor.time", brokers)
    urls = {str(name): "" for name in manifest.broker_ids}
    troubles, _, latest = asyncio.run(ask_brokers(manifest, {}, urls))
    assert all("does not answer" in trouble for trouble in troubles.values())
    assert brokers.clock_s <= ASKING_S
    assert brokers.requests == requests
    assert latest.keys() == urls.keys()


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    directory = tmp_path_factory.mktemp("cells") / "cell"
    return read_manifest(make(directory, "--channel", "trades:total") / "manifest.json")


def rows(manifest: Manifest) -> dict[str, Any]:
    """Status pages of brokers that are well."""
    return {
        name: {
            "up": True, "node": name, "cell": manifest.cell, "epoch": manifest.epoch,
            "clock_ahead_s": 0.01, "round_trip_s": 0.02, "disk": {}, "store": {}, "faults": [],
            "accusations": {}, "suspicions": {},
            "brokers": {peer: {"up": True, "trouble": ""} for peer in manifest.broker_ids},
            "logs": {
                "byzantine": {
                    "leader": "broker-1", "regency": 0, "decided": 500, "executed": 500,
                    "checkpoint": 448,
                }
            },
        }
        for name in manifest.broker_ids
    }  # fmt: skip


def judge(
    manifest: Manifest, answers: dict[str, Any], before: dict[str, Any] | None = None
) -> list[tuple[str, str, str]]:
    """Everything that is not well."""
    troubles = dict.fromkeys(map(str, manifest.broker_ids), "")
    findings = check_brokers(manifest, Path("cell"), troubles, answers, before)
    return [(f.about, f.level, f.says) for f in findings if f.level != "ok"]


@pytest.mark.parametrize(
    ("changes", "about", "level", "says"),
    [
        ({"clock_ahead_s": 3.0}, "broker-2", "warning", "its clock is 3.0 s ahead of the one here"),
        ({"clock_ahead_s": -9.0}, "broker-2", "warning", "its clock is 9.0 s behind the one here"),
        ({"epoch": 9}, "broker-2", "error", "it runs epoch 9, and the manifest here is epoch 1"),
        ({"epoch": 0}, "broker-2", "error", "it still runs epoch 0, and the manifest is epoch 1"),
        ({"accusations": {"alice": 1}}, "alice", "warning",
         "it is proven to have lied; broker-2 has the evidence"),
        ({"catching_up": ["orders of alice"]}, "broker-2", "warning",
         "it is catching up (orders of alice)"),
        ({"node": "broker-7"}, "broker-2", "warning",
         "the status page is that of broker-7 of cell cell"),
        ({"up": False}, "broker-2", "warning", "its status page does not"),
        ({"brokers": {"broker-3": {"up": False, "trouble": "why"}}}, "broker-2", "warning",
         "it has no link to broker-3 (why)"),
    ],
)  # fmt: skip
def test_status_of_one_broker_is_judged(
    manifest: Manifest, changes: dict[str, Any], about: str, level: str, says: str
) -> None:
    answers = rows(manifest)
    assert judge(manifest, answers) == []
    answers["broker-2"] |= changes
    ((who, how, what),) = judge(manifest, answers)
    assert (who, how) == (about, level)
    assert says in what


def test_brokers_that_follow_different_leaders(manifest: Manifest) -> None:
    answers = rows(manifest)
    assert not unsettled(manifest, answers)
    answers["broker-4"]["logs"] = {
        "byzantine": {"leader": "broker-2", "regency": 1, "decided": 500, "executed": 300}
    }
    assert unsettled(manifest, answers)
    says = [says for _, level, says in judge(manifest, answers) if level == "warning"]
    assert says == [
        "it follows broker-2 in regency 1 of log byzantine",
        "it has executed 300 of 500 batches of log byzantine",
    ]
    answers["broker-3"]["logs"] = answers["broker-4"]["logs"]
    levels = {about: level for about, level, _ in judge(manifest, answers)}
    assert levels["log byzantine"] == "error"


def test_log_that_stands_still_is_an_error_and_one_that_moves_is_not(manifest: Manifest) -> None:
    answers = rows(manifest)
    log = answers["broker-3"]["logs"]["byzantine"]
    log["executed"] = 499
    assert unsettled(manifest, answers)
    assert judge(manifest, answers) == []  # nobody knows yet
    before = rows(manifest)
    before["broker-3"]["logs"]["byzantine"]["executed"] = 490
    assert judge(manifest, answers, before) == []
    ((who, level, says),) = judge(manifest, answers, answers)
    assert (who, level) == ("broker-3", "error")
    assert says.startswith("it stands at batch 499 of 500 in log byzantine")
    log["executed"] = 500
    answers["broker-3"]["sizes"] = {"byzantine/offers": 2}
    ((_, _, says),) = judge(manifest, answers, answers)
    assert "no batch was decided for a while" in says


def test_suspicion_of_one_is_not_told_and_of_two_is(manifest: Manifest) -> None:
    answers = rows(manifest)
    answers["broker-1"]["suspicions"] = {"broker-3": {"dissent": 1}}
    assert judge(manifest, answers) == []
    answers["broker-2"]["suspicions"] = {"broker-3": {"silent": 4}}
    assert judge(manifest, answers) == [
        ("broker-3", "warning", "broker-1, broker-2 suspect it (dissent, silent)")
    ]


def test_what_brokers_remember_of_a_node_that_left_is_not_told(manifest: Manifest) -> None:
    answers = rows(manifest)
    load = {"disconnected": 1, "requests_s": 9.0}
    for row in answers.values():
        row |= {
            "suspicions": {"broker-9": {"silent": 4}},
            "accusations": {"broker-9": 1},
            "load": {"carol": load},
        }
    assert judge(manifest, answers) == []
    answers["broker-1"]["load"] = {"alice#2": load}
    assert [about for about, *_ in judge(manifest, answers)] == ["broker-1"]


@pytest.mark.parametrize(
    ("disk", "store", "level", "says"),
    [
        ({}, {}, "error", "it has no data directory"),
        ({"writable": False}, {}, "error", "it may not write to data"),
        ({"free_bytes": 5e8}, {}, "warning", "500 MB are free at data"),
        ({"free_bytes": 5e6}, {}, "error", "5 MB are free at data"),
        ({"set_aside": ["x"]}, {}, "warning", "damaged and set aside: x in data"),
        ({"set_aside": ["x", "y", "z"]}, {}, "error", "damaged and set aside: x, y, z"),
        ({"free_bytes": 5e9}, {"full": 1}, "error", "the disk of data is full"),
        ({"free_bytes": 5e9}, {"archive_damaged": 2}, "warning", "2 archived records in data"),
    ],
)
def test_disk_of_a_broker_is_judged(
    tmp_path: Path, disk: dict[str, Any], store: dict[str, int], level: str, says: str
) -> None:
    made = make(tmp_path / "c", "--channel", "trades:total+durable", "--cell", "cell")
    manifest = read_manifest(made / "manifest.json")
    answers = rows(manifest)
    fine = {"directory": "data", "writable": True, "free_bytes": 9e9, "set_aside": []}
    for row in answers.values():
        row["disk"] = fine
    assert judge(manifest, answers) == []
    answers["broker-2"] |= {"disk": {**fine, **disk} if disk else {}, "store": store}
    ((who, how, what),) = judge(manifest, answers)
    assert (who, how) == ("broker-2", level)
    assert says in what


@pytest.mark.parametrize(
    ("forgotten", "met_s_ago", "others_empty", "says"),
    [
        (3, 900.0, True, "had taken part before"),
        (3, 90.0, False, "the log had begun long before"),
        (3, 90.0, True, None),  # it came late to a new cell
        (0, 900.0, False, None),
    ],
)
def test_broker_that_lost_its_store_is_warned_of_and_one_that_came_late_is_not(
    tmp_path: Path, forgotten: int, met_s_ago: float, others_empty: bool, says: str | None
) -> None:
    made = make(tmp_path / "c", "--channel", "trades:total+durable", "--cell", "cell")
    manifest = read_manifest(made / "manifest.json")
    answers = rows(manifest)
    fine = {"directory": "data", "writable": True, "free_bytes": 9e9, "set_aside": []}
    for row in answers.values():
        row["uptime_s"] = 1000.0
        row["disk"] = {**fine, "began_empty": others_empty}
        row["brokers"]["broker-2"]["met_s_ago"] = met_s_ago
    answers["broker-2"] |= {"uptime_s": 91.0, "disk": {**fine, "began_empty": True}}
    answers["broker-2"]["logs"]["byzantine"]["forgotten"] = forgotten
    said = [(who, how, what) for who, how, what in judge(manifest, answers) if "no store" in what]
    assert [(who, how) for who, how, _ in said] == ([("broker-2", "warning")] if says else [])
    assert all(str(says) in what for *_, what in said)


# ------------------------------------------------------------------- status


def test_verdict_on_a_well_cell_and_on_one_with_many_problems(manifest: Manifest) -> None:
    answers = rows(manifest)
    verdict = judge_cell(manifest, Path("cell"), answers)
    assert (verdict.well, verdict.problems) == (True, [])
    assert verdict.says == "cell cell is well: 4 of 4 brokers answer; 1 more may fail"
    answers["broker-1"] |= {"faults": ["alter"], "accusations": {"broker-1": 2}}
    answers["broker-2"]["epoch"] = 0
    answers["broker-4"] = {"up": False, "state": "down"}
    verdict = judge_cell(manifest, Path("cell"), answers)
    assert not verdict.well
    assert verdict.says == (
        "cell cell is not well: broker-2: it still runs epoch 0, and the manifest is epoch 1; "
        "broker-1: it misbehaves on request (alter); broker-4: it is down; "
        "and 1 more (see 'quorumcast doctor cell')"
    )
    answers["broker-3"] = {"up": False, "state": "broker-3 of cell other"}
    verdict = judge_cell(manifest, Path("cell"), answers)
    assert "is not well: 2 of 4 brokers answer, and 3 are needed; broker-2:" in verdict.says
    says = {problem.about: problem.says for problem in verdict.problems}
    assert says["broker-3"] == "its status page is that of broker-3 of cell other"


def test_broker_that_lies_counts_among_those_that_may_fail(manifest: Manifest) -> None:
    answers = rows(manifest)
    says = "4 of 4 brokers answer, broker-2 is faulty; no other may fail"
    for changes in ({"faults": ["alter"]}, {"accusations": {"broker-2": 1}}):
        answers["broker-2"] = rows(manifest)["broker-2"] | changes
        findings = check_brokers(manifest, Path(), dict.fromkeys(answers, ""), answers)
        assert (findings[-1].about, findings[-1].says) == ("quorum", says)


def test_advice_about_a_liar_names_the_command_that_excludes_it(manifest: Manifest) -> None:
    answers = rows(manifest)
    answers["broker-1"]["accusations"] = {"broker-2": 1, "alice#2": 1}
    findings = check_brokers(manifest, Path(), dict.fromkeys(answers, ""), answers)
    advice = {finding.about: finding.do for finding in findings}
    assert "exclude broker-2 with 'quorumcast members replace broker-2 NAME" in advice["broker-2"]
    assert "exclude alice with 'quorumcast epoch remove-client alice'" in advice["alice#2"]


def test_cell_whose_ports_another_one_has_is_told_once(manifest: Manifest) -> None:
    answers = {name: row | {"cell": "other"} for name, row in rows(manifest).items()}
    refused = dict.fromkeys(answers, "it belongs to 'other', which is not the system")
    (finding,) = check_brokers(manifest, Path(), refused, answers)
    assert finding.level == "error"
    assert finding.says == "cell 'other' runs on the ports of cell 'cell'"
    well = check_brokers(manifest, Path(), dict.fromkeys(answers, ""), answers)
    assert "the status page is that of" in well[0].says  # its own pages are elsewhere


def test_status_tells_what_the_busiest_broker_does_for_predicates() -> None:
    def work(looked_at: int, predicates: int = 3) -> dict[str, dict[str, dict[str, int]]]:
        counts = {"predicates": predicates, "subscribers": 2, "rows_looked_at": looked_at}
        sent = {"rows_sent": 12, "cuts": 4, "whole": 1}
        return {"predicates": {"orders": {**counts, **sent}, "idle": {**counts, "predicates": 0}}}

    (line,) = predicate_lines({"broker-1": work(1, predicates=1)})
    assert line.startswith("orders: 1 predicate of 2 subscribers; broker-1 looked at 1 row and")
    rows = {"broker-1": work(10), "broker-2": work(2_000_000), "broker-3": {}}
    assert predicate_lines(rows) == [
        "orders: 3 predicates of 2 subscribers; broker-2 looked at 2.0M rows and sent 12, "
        "in 4 cuts and 1 whole publication"
    ]


def test_status_table_fits_eighty_columns(manifest: Manifest) -> None:
    answers = rows(manifest)
    for row in answers.values():
        row["rates"] = {"publications": 123_456.0, "bytes_in": 987.6e6}
        row |= {"clients": ["alice"] * 100, "rss_bytes": 12_345e6, "epoch": 123}
        row["logs"]["byzantine"]["executed"] = 1_234_567
    answers["broker-2"]["catching_up"] = ["x"]
    answers["broker-3"]["accusations"] = {"broker-3": 1}
    answers["broker-4"] = {"up": False, "state": "restarts in 15 s"}
    out = Console(width=STATUS_WIDTH, file=io.StringIO())
    with out.capture() as shown:
        out.print(status_table("cell", answers))
    text = shown.get()
    assert max(map(len, text.splitlines())) <= STATUS_WIDTH
    states = ("leader", "catching up", "proven liar")
    for whole in ("123,456", "987.6", "12,345", "1.2M", *states):
        assert whole in text
    assert "…" not in text


def test_status_table_with_seven_long_names_and_two_logs_cuts_nothing(manifest: Manifest) -> None:
    like = rows(manifest)["broker-1"]
    names = [f"broker-{number}-in-the-data-centre-of-frankfurt" for number in range(1, 8)]
    log = {"executed": 123_456_789, "leader": names[0]}
    like |= {
        "brokers": {name: {"up": True} for name in names},
        "clients": ["alice"] * 1234,
        "rates": {"publications": 1_234_567.0, "bytes_in": 1234.5e6},
        "rss_bytes": 12_345e6,
        "epoch": 12_345,
        "logs": {"byzantine": log, "crash": log},
    }
    answers = {name: dict(like) for name in names}
    answers[names[6]] = {"up": False, "state": "broker-7 of cell another-with-a-long-name"}
    out = Console(width=STATUS_WIDTH, file=io.StringIO())
    with out.capture() as shown:
        out.print(status_table("a-long-name-of-a-cell-" * 4, answers))
    text = shown.get()
    assert max(map(len, text.splitlines())) <= STATUS_WIDTH
    assert "…" not in text
    for figure, times in {"12345": 6, "7/7": 6, "1,234.5": 6, "12,345": 6, "123.5M": 12}.items():
        assert text.count(figure) == times
    column = "".join(line.split("  ")[0].strip() for line in text.splitlines())
    assert all(name in column for name in names)


def test_probe_of_something_that_is_no_broker(manifest: Manifest) -> None:
    async def main() -> None:
        server = HttpServer({("GET", "/"): lambda request: json_response({})})
        await server.listen("127.0.0.1", 0)
        name, address = manifest.broker_ids[0], Address("127.0.0.1", server.port)
        assert await probe(name, address, None, PATIENCE_S) == ""
        await server.close()
        assert "refuses connections" in await probe(name, address, None, PATIENCE_S)

    run(main())
