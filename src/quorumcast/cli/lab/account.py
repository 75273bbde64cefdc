"""Prints the results of the demonstration: the liar, the proof, and the results of Spark."""

from __future__ import annotations

import shlex
from typing import Any

from quorumcast.cli.common import console, this_command


def print_account(summary: dict[str, Any]) -> None:
    """Print what was published and accepted, the liar, and how to verify it."""
    out = console()
    out.print()
    out.print(f"[bold]published[/]   {summary['published']:,} events")
    for name, count in summary["accepted"].items():
        out.print(f"[bold]accepted[/]    {count:,} by {name}")
    out.print(
        f"[bold]lost[/] {summary['lost']}, [bold]duplicated[/] {summary['duplicated']}, "
        f"[bold]altered[/] {summary['altered']}"
    )
    out.print(f"[bold]liar[/]        {', '.join(summary['liars']) or 'nobody was convicted'}")
    for kind in ("evidence", "receipt"):
        if proof := summary.get(kind):
            verdict = f"[red]not valid: {proof['reason']}[/]"
            if proof["valid"]:
                verdict = f"[green]valid[/]: {proof['says']}"
            out.print(f"[bold]{kind:11}[/] {verdict}", soft_wrap=True)
            file, manifest = shlex.quote(proof["file"]), shlex.quote(summary["manifest"])
            command = f"{this_command()} verify {file} -m {manifest}"
            out.print(f"            {command}", markup=False, soft_wrap=True)


def print_finale(found: dict[str, Any]) -> None:
    """Print the table, the evaluation and the audit."""
    out = console()
    table, evaluation, audit = found["table"], found["evaluation"], found["audit"]
    dissent = ", ".join(f"{node} on {rows:,}" for node, rows in sorted(table["dissent"].items()))
    out.print(
        f"[bold]table[/]       {table['rows']:,} rows, {table['distinct']:,} different ones, each "
        f"with {table['fewest_votes']} votes or more; dissent: {dissent or 'none'}",
        soft_wrap=True,
    )
    out.print(f"            {table['file']}", markup=False, soft_wrap=True)
    out.print(
        f"[bold]evaluation[/]  {evaluation['coverage']:.2%} of what was owed arrived, half of it "
        f"within {evaluation['latency_p50_ms']:.1f} ms",
        soft_wrap=True,
    )
    out.print(f"            {evaluation['file']}", markup=False, soft_wrap=True)
    for node, deeds in sorted(audit["named"].items()):
        said = ", ".join(f"{deed} ({standing})" for deed, standing in sorted(deeds.items()))
        out.print(f"[bold]audit[/]       {node}: {said}", soft_wrap=True)
    out.print(f"            {audit['file']}", markup=False, soft_wrap=True)
