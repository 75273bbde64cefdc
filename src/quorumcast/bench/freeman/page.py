"""The rows of a sweep as CSV and as an HTML page: charts, his figures, the study of α."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

from quorumcast.bench.freeman.points import (
    ALPHA,
    FOUR,
    LATENCY,
    PERCENT,
    REPAIR_RATE,
    SEVEN,
    SPLIT,
    TOPICS_4,
    TOPICS_7,
)
from quorumcast.bench.freeman.study import Optimum, fit, honest, optimum, repairing
from quorumcast.bench.freeman.sweep import FreemanRow, summary
from quorumcast.charts.formatting import NOTHING, amount, percent, times
from quorumcast.charts.html import document, legend, section, table
from quorumcast.charts.svg import Series, lines

PAGE, CSV = "index.html", "rows.csv"
#: The share of REPAIR_RATE that a cell keeps up with where its latency is drawn.
CARRIED = 0.75
#: Parts with charts over publishers, and their titles.
OVER_PUBLISHERS = {
    FOUR: "Four brokers (§7.3.1, figures 7.1 and 7.2)",
    SEVEN: "Seven brokers (§7.3.2, figures 7.8 and 7.9)",
    TOPICS_4: "Four brokers, four topics (§7.3.3)",
    TOPICS_7: "Seven brokers, four topics",
    "drop": "A broker drops, publishers skip another (§7.3.4, figures 7.14 and 7.16)",
    "alter": "A broker alters, publishers skip another (§7.3.4, figures 7.15 and 7.17)",
    LATENCY: "Each publisher at 100 publications per second",
}
Rows = Sequence[FreemanRow]
Value = Callable[[FreemanRow], float | None]


def write_report(directory: Path, rows: Rows) -> None:
    """Write the page and the CSV file of these rows."""
    shown = summary(rows)
    with (directory / CSV).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FreemanRow.__struct_fields__)
        writer.writerows(
            [getattr(row, name) for name in FreemanRow.__struct_fields__] for row in rows
        )
    (directory / PAGE).write_text(page(shown))


def page(shown: Rows) -> str:
    """Return the page."""
    parts = [
        "<h1>Freeman's measurements, repeated</h1>"
        '<p class="faint">His brokers had a machine each (four cores at 2.13 GHz); here all '
        "processes share one machine. Latency is from post to acceptance, and counts what came by "
        "history.</p>",
        section("Beside his figures", "Where he gives any.", _beside(shown)),
        section(
            "Highest throughput and the latency there",
            "Publications per second, the mean in milliseconds, and the number of publishers, as "
            "in figures 7.10 to 7.13, 7.18 and 7.19. He: a little less with four topics, less with "
            "seven brokers, not much changed by a broker that drops or alters, at higher latency; "
            "and nothing at all from AB and chain with such a broker.",
            _highest(shown),
        ),
    ]
    for part, title in OVER_PUBLISHERS.items():
        rows = [row for row in shown if row.part == part]
        parts.append(section(title, "", _charts(rows) + _table(rows)))
    percents = [row for row in shown if row.part == PERCENT]
    text = "One publisher. The broker misbehaves in this share of its messages (§6.7)."
    parts.append(section("Percentages", text, _table(percents)))
    return document("Freeman's measurements, repeated", [*parts, _study(shown)])


def _beside(shown: Rows) -> str:
    head = ["part", "policy", "brokers", "publishers", "his publ./s", "ours", "ratio", "delivered",
            "his mean ms", "ours", "his dev.", "ours", "his 99 %", "ours"]  # fmt: skip
    rows = [
        [
            *(row.part, row.name, str(row.brokers), str(row.publishers)),
            "nothing" if row.freeman_pps == 0 else amount(row.freeman_pps),
            *(amount(row.publications_per_s), times(row.ratio)),
            percent(row.delivered / row.published if row.published else None),
            *(amount(row.freeman_mean_ms), amount(row.mean_ms)),
            *(amount(row.freeman_deviation_ms), amount(row.deviation_ms)),
            *(amount(row.freeman_p99_ms), amount(row.p99_ms)),
        ]
        for row in shown
        if row.freeman_pps is not None or row.freeman_mean_ms is not None
        if row.publishers in (1, row.point.figures.publishers)
    ]
    return table(head, rows, words=2)


def _highest(shown: Rows) -> str:
    parts = [part for part in OVER_PUBLISHERS if part != LATENCY]
    found: dict[str, dict[str, FreemanRow]] = {}
    for row in shown:
        if row.part in parts:
            best = found.setdefault(row.name, {}).setdefault(row.part, row)
            if row.publications_per_s > best.publications_per_s:
                found[row.name][row.part] = row

    def cell(row: FreemanRow | None) -> str:
        if row is None:
            return NOTHING
        rate = amount(row.publications_per_s)
        return f"{rate}/s, {amount(row.mean_ms)} ms, {row.publishers}"

    rows = [[name, *(cell(best.get(part)) for part in parts)] for name, best in found.items()]
    return table(["policy", *parts], rows)


def _table(rows: Rows) -> str:
    head = ["policy", "fault", "publishers", "publ./s", "mean ms", "dev.", "50 %", "90 %", "99 %",
            "99.9 %", "max.", "by history", "broker µs", "delivered"]  # fmt: skip
    figures = ("mean_ms", "deviation_ms", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "most_ms")
    cells = [
        [
            row.name,
            f"{row.fault} {row.percent} %" if row.fault else NOTHING,
            str(row.publishers),
            amount(row.publications_per_s),
            *(amount(getattr(row, name)) for name in figures),
            percent(row.by_history),
            amount(row.broker_us_per_event),
            percent(row.delivered / row.published if row.published else None),
        ]
        for row in rows
    ]
    bad = [index for index, row in enumerate(rows) if not row.sound]
    return table(head, cells, words=2, bad=bad)


def _charts(rows: Rows) -> str:
    return _pair(
        _chart("Throughput", _curves(rows, lambda row: row.publications_per_s), "publications/s"),
        _chart("Mean latency", _curves(rows, lambda row: row.mean_ms), "milliseconds"),
    )


def _curves(rows: Rows, value: Value) -> list[Series]:
    found: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(rows, key=lambda row: row.publishers):
        if (y := value(row)) is not None:
            found.setdefault(row.name, []).append((float(row.publishers), y))
    names = dict.fromkeys(row.name for row in rows)
    return [Series(name, found[name]) for name in names if name in found]


def _chart(
    title: str, curves: Sequence[Series], unit: str, *, x: str = "publishers", log: bool = False
) -> str:
    picture = lines(curves, x_label=x, y_label=unit, logarithmic=log)
    return f"<h3>{title}</h3>{picture}{legend(curves)}" if picture else ""


def _pair(*charts: str) -> str:
    inside = "".join(f'<div class="card">{chart}</div>' for chart in charts if chart)
    return f'<div class="grid2">{inside}</div>' if inside else ""


# -------------------------------------------------------------------- the study of α


def _study(shown: Rows) -> str:
    rates, costs, repairs, said = [], [], [], []
    for fast in SPLIT:
        policy = f"{fast.policy}+history"
        found = honest(shown, policy)
        if not found:
            continue
        rates.append(Series(f"{fast.name} with history", _over_alpha(found, "publications_per_s")))
        ends = (float(found[0].alpha), float(found[-1].alpha))
        rates += [
            Series(fast.name, [(end, row.publications_per_s) for end in ends])
            for row in honest(shown, fast.policy)
        ]
        costs.append(Series(f"{fast.name}, measured", _over_alpha(found, "broker_us_per_event")))
        if (fitted := fit(found)) is not None:
            own, history = fitted
            points = [(float(row.alpha), own + history / row.alpha) for row in found]
            costs.append(Series(f"{fast.name}, own + history / α", points))
        # Latency without bound, where brokers cannot keep up, would hide the rest.
        carried = [
            row
            for row in repairing(shown, policy)
            if row.publications_per_s >= CARRIED * REPAIR_RATE
        ]
        repairs.append(Series(fast.name, _over_alpha(carried, "mean_ms")))
        best = optimum(shown, policy)
        said += [f"<p>{sentence(fast.name, best)}</p>"] if best else []
    if not said:
        return ""
    charts = _pair(
        _chart("Throughput over α", rates, "publications/s", x="α", log=True),
        _chart("Processor time of brokers", costs, "µs per publication", x="α", log=True),
        _chart(
            "Mean latency while a broker drops", [s for s in repairs if s.points],
            "milliseconds", x="α", log=True,
        ),
    )  # fmt: skip
    rows = [row for row in shown if row.part == ALPHA]
    return section("The optimum of α (§8.1)", "", "".join(said) + charts + _table(rows))


def _over_alpha(rows: Rows, name: str) -> list[tuple[float, float]]:
    return [(float(row.alpha), v) for row in rows if (v := getattr(row, name)) is not None]


def sentence(name: str, found: Optimum) -> str:
    """Return where the optimum of α lies, and why, for a reader."""
    said = (
        f"{name}: the rate is highest at α={found.best_alpha} ({amount(found.best_rate)}/s); the "
        f"smallest α within 5 % of it, the optimum, is {found.alpha} ({amount(found.rate)}/s). At "
        f"α={found.most_alpha} the rate is {percent(found.most_rate / found.best_rate)} of the "
        "highest."
    )
    if found.own_us and found.history_us:
        share = found.history_us / found.alpha / found.own_us
        said += (
            f" Why: brokers need {amount(found.own_us)} µs for a publication and "
            f"{amount(found.history_us)} µs for a history, which α publications share. At the "
            f"optimum histories add {percent(share)}, and a larger α saves at most that."
        )
    if found.repair_ms is not None and found.most_repair_ms is not None:
        said += (
            f" What a history must repair waits for it, at {amount(REPAIR_RATE)} publications/s "
            f"the least at α={found.repair_alpha}: {amount(found.repair_ms)} ms on average, and "
            f"{amount(found.most_repair_ms)} ms at α={found.most_alpha}. A smaller α costs more "
            "histories than brokers can carry at that rate, a larger one lets repairs wait."
        )
    return said
