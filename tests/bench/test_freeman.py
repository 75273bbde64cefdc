"""Freeman's measurements: which points there are, how a sweep keeps rows, what the page says."""

import csv
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from tests.bench.test_papers import report
from tests.cli.shell import sentence

from quorumcast.bench.freeman.page import page, write_report
from quorumcast.bench.freeman.points import ALPHA, ALPHAS, FIGURES, PARTS, SHORT, Line, Point
from quorumcast.bench.freeman.study import fit, honest, optimum
from quorumcast.bench.freeman.sweep import FreemanRow, FreemanSweep, measure, run_freeman, summary
from quorumcast.bench.plan import BenchPlan, BenchReport
from quorumcast.cli.lab.freeman import rows_table
from quorumcast.core.errors import UsageError

PLAN = BenchPlan(events=100)
POINTS = [point for part in PARTS.values() for point in part]


class Machine:
    """Instead of processes: answers every plan, until it is switched off."""

    def __init__(self, most: int = 10_000) -> None:
        self.asked: list[BenchPlan] = []
        self._most = most

    def run(self, plan: BenchPlan) -> BenchReport:
        if len(self.asked) == self._most:
            raise KeyboardInterrupt
        self.asked.append(plan)
        lost = 0 if plan.promises_delivery() else 100
        return report(plan, 0.0 if lost else 1_000.0 * plan.publishers, lost)


def test_sweep_has_every_combination_of_his_and_each_can_be_run() -> None:
    for point in (*POINTS, *SHORT):
        point.plan(BenchPlan(events=50_000)).check()
    assert len(set(POINTS)) == len(POINTS)
    honest_ones = {
        (p.line.policy, p.line.alpha, p.brokers, p.topics, p.publishers)
        for p in POINTS
        if not p.fault and not p.rate
    }
    policies = {("ab", 0), ("brb", 0), ("chain", 0), ("ab+history", 10), ("chain+history", 10)}
    for policy, alpha in policies:
        for brokers in (4, 7):
            for topics in (1, 4):
                for publishers in (1, 14):
                    assert (policy, alpha, brokers, topics, publishers) in honest_ones
    assert {(p.fault, p.percent) for p in POINTS if p.fault} >= {("drop", 100), ("alter", 50)}
    assert {p.line.alpha for p in PARTS[ALPHA] if p.line.policy == "ab+history"} == set(ALPHAS)


def test_figures_of_his_stand_beside_points_of_the_sweep() -> None:
    for (policy, alpha, brokers), figures in FIGURES.items():
        assert any(
            point.figures == figures and point.publishers == (figures.publishers or 1)
            for point in POINTS
            if (point.line.policy, point.line.alpha, point.brokers) == (policy, alpha, brokers)
        )
    dropped = next(point for point in PARTS["drop"] if point.line.policy == "ab")
    assert dropped.figures.publications_per_s == 0


def test_row_names_its_point_again() -> None:
    for point in POINTS:
        assert measure(point, 1, PLAN, Machine().run).point == point


def test_sweep_that_is_interrupted_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    first = Machine(most=5)
    with pytest.raises(KeyboardInterrupt):
        FreemanSweep(tmp_path, PLAN, ["percent"]).run(1, run=first.run)
    rows = tmp_path / "rows.jsonl"
    # The machine went off in the middle of a line.
    rows.write_bytes(rows.read_bytes()[:-20])
    second = Machine()
    seen: list[int] = []
    found = FreemanSweep(tmp_path, PLAN, ["percent"]).run(
        2, run=second.run, written=lambda rows: seen.append(len(rows))
    )
    count = len(PARTS["percent"])
    assert len(second.asked) == 2 * count - 4
    assert seen == list(range(5, 2 * count + 1))
    assert len({(row.point, row.round) for row in found}) == len(found) == 2 * count
    assert FreemanSweep(tmp_path, PLAN, ["percent"]).missing(2) == []
    assert first.asked[0].events == 100
    assert first.asked[0].warmup == 0


def test_sweep_that_another_one_is_at_work_on_is_refused(tmp_path: Path) -> None:
    second = FreemanSweep(tmp_path, PLAN, ["percent"])

    def meanwhile(plan: BenchPlan) -> BenchReport:
        with pytest.raises(UsageError, match="another sweep is writing"):
            second.run(1, run=Machine().run)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FreemanSweep(tmp_path, PLAN, ["percent"]).run(1, run=meanwhile)
    assert second.run(1, run=Machine().run)


def test_sweep_refuses_rows_that_were_measured_otherwise_and_unknown_parts(tmp_path: Path) -> None:
    FreemanSweep(tmp_path, PLAN)
    with pytest.raises(UsageError, match="measured with other options"):
        FreemanSweep(tmp_path, replace(PLAN, digest="md5"))
    with pytest.raises(UsageError, match="no part 'five'; choose of four, alpha"):
        FreemanSweep(tmp_path, PLAN, ["five"])


def test_summary_has_the_median_run_and_whatever_was_wrong() -> None:
    row = measure(POINTS[0], 1, PLAN, Machine().run)
    runs = [
        replace(row, round=1, publications_per_s=5.0, lost=1, sound=False),
        replace(row, round=2, publications_per_s=9.0, mean_ms=4.0),
        replace(row, round=3, publications_per_s=11.0),
    ]
    (shown,) = summary(runs)
    assert (shown.round, shown.publications_per_s, shown.mean_ms) == (2, 9.0, 4.0)
    assert (shown.lost, shown.sound) == (1, False)


def test_short_suite_is_beside_his_figures_and_relative_to_ab() -> None:
    rows = run_freeman(BenchPlan(), 2, run=Machine().run)
    assert len(rows) == len(SHORT)
    assert (rows[0].freeman_pps, rows[0].ratio) == (11_000, 0.09)
    assert [row.freeman_pps for row in rows if row.brokers == 7] == [7_400, None]
    shown = rows_table(rows, "x")
    cells = {column.header: list(column.cells) for column in shown.columns}
    assert cells["to AB"] == ["1.00"] * len(rows)
    assert cells["his mean"][:2] == ["0.7", "2.3"]


def alpha_rows(policy: str = "ab+history") -> list[FreemanRow]:
    """Brokers need 50 µs for a publication and 400 µs for a history; repairs take α / 2 ms, and
    an age at α = 1."""
    made = []
    for alpha in ALPHAS:
        point = Point(part=ALPHA, line=Line("AB", policy, alpha))
        row = measure(point, 1, PLAN, Machine().run)
        cost = 50 + 400 / alpha
        made.append(replace(row, broker_us_per_event=cost, publications_per_s=1e6 / cost))
        late = replace(point, fault="drop", rate=400.0)
        wait = alpha / 2 if alpha > 1 else 9_000.0
        made.append(replace(measure(late, 1, PLAN, Machine().run), mean_ms=wait))
    return made


def test_optimum_is_the_smallest_alpha_near_the_best_rate() -> None:
    rows = alpha_rows()
    found = optimum(rows, "ab+history")
    assert found is not None
    assert (found.alpha, found.best_alpha, found.most_alpha) == (200, 1_000, 1_000)
    assert (found.repair_alpha, found.repair_ms, found.most_repair_ms) == (2, 1.0, 500.0)
    assert fit(honest(rows, "ab+history")) == pytest.approx((50.0, 400.0))
    assert optimum(rows, "chain+history") is None


def test_optimum_of_a_rate_that_falls_again_is_before_the_fall() -> None:
    rows = [
        replace(row, publications_per_s=100.0) if row.alpha > 50 else row for row in alpha_rows()
    ]
    found = optimum(rows, "ab+history")
    assert found is not None
    assert (found.alpha, found.best_alpha, found.most_rate) == (50, 50, 100.0)


def test_page_has_charts_figures_of_his_and_the_optimum(tmp_path: Path) -> None:
    rows = [measure(point, 1, PLAN, Machine().run) for point in POINTS if point.part != ALPHA]
    write_report(tmp_path, rows + alpha_rows())
    text = (tmp_path / "index.html").read_text()
    pictures = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text)]
    # Two for each part over publishers, three for α.
    assert len(pictures) == 2 * 7 + 3
    assert all(len(picture.findall(".//{*}path[@class]")) > 3 for picture in pictures)
    assert "the optimum, is 200" in text
    assert "<td>11,000</td><td>12,000</td><td>× 1.09</td>" in text
    assert "<td>nothing</td><td>0</td>" in text
    assert "<td class=t>AB</td><td>14,000/s, 2 ms, 14</td>" in text
    with (tmp_path / "rows.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows) + 2 * len(ALPHAS)
    assert "The optimum" not in page([])


def test_bench_sweep_options_without_a_sweep_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    suite = ("bench", "--suite", "freeman")
    assert "are for '--suite freeman'" in sentence(capsys, "bench", "--full", "--output", tmp_path)
    assert "--full needs --output DIR" in sentence(capsys, *suite, "--full")
    assert "add --full" in sentence(capsys, *suite, "--output", tmp_path)
    wrong = sentence(capsys, *suite, "--full", "--output", tmp_path, "--part", "x")
    assert "there is no part 'x'" in wrong
