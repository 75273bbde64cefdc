"""The report of an audit: one self-contained HTML page, and the proofs as files."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

#: Limit of the verdicts on a page.
MAX_SHOWN = 2_000
#: Characters of an escaped name in a file name; longer ones end with a hash.
MAX_NAME = 80

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
  color: #1c2430; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem;
  border-bottom: 1px solid #d8dee6; }
code { font: .82rem ui-monospace, monospace; background: #f2f4f7; padding: .1rem .3rem;
  overflow-wrap: anywhere; }
.proven { color: #9b1c1c; font-weight: 600; } .suspected { color: #92580b; font-weight: 600; }
.disputed, .measured { color: #51606f; }
"""
_MEANING = {
    "proven": "Signed statements that contradict each other, or what f+1 other brokers signed. "
    "Anybody can verify them with the command beside them.",
    "suspected": "No explanation with at most f lying brokers, and as many lying clients as was "
    "assumed, leaves these out. Nothing proves it to a stranger.",
    "disputed": "One node's word against another's: somebody lies, and it cannot be said who. The "
    "score is the share of explanations that contain the node; it is below 1, so these are not "
    "named.",
    "measured": "These spoke later than the others did, as far as single observers can tell. So "
    "does a node far away: this is a measurement, and says nothing of anybody.",
}

Row = Mapping[str, Any]


def file_name(name: str) -> str:
    """Return a safe file name for a name that a node chose."""
    escaped = quote(name, safe="+")
    if len(escaped) <= MAX_NAME:
        return escaped
    return f"{escaped[:MAX_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def proof_name(row: Row) -> str:
    """Return the file name of a proof."""
    return f"{file_name(row['run'])}-{file_name(row['node'])}-{row['deed']}.evidence"


def manifest_name(row: Row) -> str:
    """Return the file name of the manifest of a run."""
    return f"{file_name(row['run'])}.json"


def write_proofs(
    directory: Path, rows: Iterable[Row], manifests: Mapping[str, bytes]
) -> list[Path]:
    """Write each proof as a file for `quorumcast verify`, and the manifests of their runs."""
    written = []
    for row in rows:
        if not row["proof"]:
            continue
        path = directory / "evidence" / proof_name(row)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(row["proof"], encoding="utf-8")
        written.append(path)
        if row["run"] in manifests:
            beside = directory / "manifests" / manifest_name(row)
            beside.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(manifests[row["run"]])
    return written


def verify_command(row: Row, directory: str, manifest: str) -> str:
    """Return the command that verifies a proof."""
    by = manifest or f"{directory}/manifests/{manifest_name(row)}"
    return f"quorumcast verify {directory}/evidence/{proof_name(row)} -m {by}"


def page(rows: Sequence[Row], *, directory: str, manifest: str, runs: int) -> str:
    """Return the page; `directory` holds the proofs, and is "" if they are not written."""
    shown = list(rows)[:MAX_SHOWN]
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'><title>Audit</title>",
        f"<style>{_STYLE}</style></head><body><h1>Audit of {runs:,} "
        f"run{'' if runs == 1 else 's'}</h1><p>{_summary(rows)}</p>",
    ]
    for standing, meaning in _MEANING.items():
        chosen = [row for row in shown if row["standing"] == standing]
        if chosen:
            parts.append(f"<h2 class={standing}>{standing.capitalize()}</h2><p>{meaning}</p>")
            parts.append(_table(chosen, directory, manifest))
    if len(rows) > len(shown):
        parts.append(f"<p>{len(rows) - len(shown):,} more are in the table of verdicts.</p>")
    return "".join((*parts, "</body></html>\n"))


def _summary(rows: Sequence[Row]) -> str:
    counts = {
        standing: len({(row["run"], row["node"]) for row in rows if row["standing"] == standing})
        for standing in _MEANING
    }
    return (
        f"{counts['proven']:,} proven, {counts['suspected']:,} suspected, "
        f"{counts['disputed']:,} disputed, {counts['measured']:,} measured as late."
    )


def _table(rows: Sequence[Row], directory: str, manifest: str) -> str:
    head = ("run", "who", "did what", "towards", "when", "how often", "why", "how sure")
    lines = ["<table><tr>", *(f"<th>{title}</th>" for title in head), "</tr>"]
    for row in rows:
        sure = f"{row['score']:.2f}"
        if row["proof"] and not directory:
            sure += "<br>--output writes the proof"
        elif row["proof"]:
            sure = f"<code>{html.escape(verify_command(row, directory, manifest))}</code>"
        elif row["explanations"]:
            sure += f"<br>{html.escape(row['explanations'])}"
        cells = (
            html.escape(row["run"]),
            f"<b>{html.escape(row['node'])}</b>",
            html.escape(row["deed"]),
            html.escape(row["towards"]),
            html.escape(when(row)),
            f"{row['count']:,}",
            html.escape(row["reasons"]),
            sure,
        )
        lines += ["<tr>", *(f"<td>{cell}</td>" for cell in cells), "</tr>"]
    return "".join((*lines, "</table>"))


def when(row: Row) -> str:
    """Return the span of a verdict as text; simulated times count from the start of the run."""
    first, last = row["t_ms"], row["until_ms"]
    if not last:
        return ""
    if last < 10**11:
        return f"{first / 1000:.2f} to {last / 1000:.2f} s"
    begin, end = (datetime.fromtimestamp(t / 1000, UTC) for t in (first, last))
    return f"{begin:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} UTC"
