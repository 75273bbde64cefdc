"""The checks of `quorumcast doctor` and `quorumcast status` on brokers.

They look at addresses, links, clocks, disks, epochs, logs, conduct and the quorum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from quorumcast.cli.cell.checks import Finding, Level
from quorumcast.cli.cell.levels import starting_command
from quorumcast.cli.common import MANIFEST, Rows, is_broker, ports_taken
from quorumcast.core.ids import holder

if TYPE_CHECKING:
    from quorumcast.manifest.manifest import BrokerEntry, Manifest

Row = dict[str, Any]

CLOCK_S = 1.0
#: Longest time between the status pages of one round of requests.
APART_S = 5.0
LITTLE_BYTES = 1 << 30
TOO_LITTLE_BYTES = 64 << 20
#: Problems that a verdict names; it counts the others.
NAMED_PROBLEMS = 3


class Verdict(msgspec.Struct, frozen=True):
    """Whether a cell is well, by the status pages of its brokers."""

    well: bool
    #: One sentence.
    says: str
    problems: list[Finding]


def judge_cell(manifest: Manifest, directory: Path, rows: Rows) -> Verdict:
    """The verdict on a cell; `rows` are those of `ask_cell`."""
    troubles = {name: "" if row["up"] else _not_up(row) for name, row in rows.items()}
    findings = check_brokers(manifest, directory, troubles, rows)
    quorum = findings.pop()
    if not any(row["up"] for row in rows.values()):
        start = f"start it with '{starting_command(manifest, directory)}'"
        taken = ports_taken(manifest.cell, rows) or ("no broker is up", start)
        findings, quorum = [], Finding("quorum", "error", "; ".join(taken))
    errors = [f for f in (quorum, *findings) if f.level == "error"]
    problems = errors + [f for f in findings if f.level == "warning"]
    if not problems:
        return Verdict(True, f"cell {manifest.cell} is well: {quorum.says}", [])
    named = [
        f.says if f.about == quorum.about else f"{f.about}: {f.says}"
        for f in problems[:NAMED_PROBLEMS]
    ]
    more = len(problems) - len(named)
    if more:
        named.append(f"and {more} more (see 'quorumcast doctor {directory}')")
    return Verdict(False, f"cell {manifest.cell} is not well: {'; '.join(named)}", problems)


def _not_up(row: Row) -> str:
    state = row["state"]
    return "it is down" if state == "down" else f"its status page is that of {state}"


def check_brokers(
    manifest: Manifest,
    directory: Path,
    troubles: dict[str, str],
    rows: Rows,
    before: Rows | None = None,
) -> list[Finding]:
    """All findings about each broker, and about the cell as a whole.

    `before` is the status of a few seconds ago, to find brokers that make no progress.
    """
    taken = ports_taken(manifest.cell, rows)
    if taken is not None and all(troubles.values()):
        return [Finding("quorum", "error", *taken)]
    findings: list[Finding] = []
    for broker in manifest.brokers:
        row = rows[broker.id]
        findings.append(_reach(manifest, broker, troubles[broker.id], row, directory))
        findings += _disk(manifest, broker.id, row, directory)
        if is_broker(row, broker.id, manifest.cell):
            findings += _clock(broker.id, row)
            findings += _epoch(manifest, broker.id, row, directory)
            findings += _catching_up(broker.id, row)
            findings += _uplinks(broker.id, row)
            findings += _faults(broker.id, row)
            findings += _links(broker.id, row, troubles)
            findings += _floods(manifest, broker.id, row)
    answering = {name: row for name, row in rows.items() if is_broker(row, name, manifest.cell)}
    findings += _lost_stores(answering)
    findings += _liars(manifest, answering)
    findings += _too_many_faulty(manifest, answering)
    findings += _suspects(manifest, answering)
    findings += _logs(manifest, answering)
    findings += _stalled(answering, before or {})
    findings.append(_quorum(manifest, troubles, answering, directory))
    return findings


def members_among(manifest: Manifest, names: Iterable[str]) -> list[str]:
    """The names of nodes of the present epoch; brokers still count nodes that have left."""
    members = {str(node.id) for node in manifest.nodes}
    return [name for name in names if holder(name) in members]


def unsettled(manifest: Manifest, rows: Rows) -> bool:
    """Whether brokers differ in something on which they may agree a moment later."""
    answering = [row for name, row in rows.items() if is_broker(row, name, manifest.cell)]
    if any(row["epoch"] < manifest.epoch or _waits(row) for row in answering):
        return True
    logs: dict[str, Counter[tuple[str, int]]] = {}
    for row in answering:
        for log, state in row.get("logs", {}).items():
            logs.setdefault(log, Counter())[state["leader"], state["regency"]] += 1
    return any(len(views) > 1 for views in logs.values())


def _reach(
    manifest: Manifest, broker: BrokerEntry, trouble: str, row: Row, directory: Path
) -> Finding:
    if trouble:
        running = is_broker(row, broker.id, manifest.cell)
        return Finding(
            broker.id,
            "error" if running else "warning",
            trouble,
            "check its address in the manifest, and firewalls on the way"
            if running
            else f"start it, with '{starting_command(manifest, directory)}' or 'quorumcast broker'",
        )
    if not row["up"]:
        return Finding(
            broker.id,
            "warning",
            f"answers at {broker.address}, but its status page does not, so little is known of it",
            f"say where the page is with --url {broker.id}=http://HOST:PORT",
        )
    if not is_broker(row, broker.id, manifest.cell):
        says = f"the status page is that of {row['node']} of cell {row['cell']}"
        advice = f"say where its own page is with --url {broker.id}=http://HOST:PORT"
        return Finding(broker.id, "warning", says, advice)
    return Finding(broker.id, "ok", f"answers at {broker.address} as the one it should be")


def _clock(name: str, row: Row) -> list[Finding]:
    ahead = row.get("clock_ahead_s", 0.0)
    if abs(ahead) - row.get("round_trip_s", 0.0) / 2 <= CLOCK_S:
        return []
    way = "ahead of" if ahead > 0 else "behind"
    says = f"its clock is {abs(ahead):.1f} s {way} the one here"
    return [Finding(name, "warning", says, "set both with NTP")]


def _disk(manifest: Manifest, name: str, row: Row, directory: Path) -> list[Finding]:
    from quorumcast.runtime.store.database import MAX_ASIDE
    from quorumcast.runtime.store.directory import look_at

    known = is_broker(row, name, manifest.cell)
    data = directory / "data"
    disk: Any = row.get("disk") if known else msgspec.structs.asdict(look_at(data, name))
    if not manifest.needs_store or (not known and not data.exists()):
        return []
    if not disk:
        return [Finding(name, "error", "it has no data directory", "start it with --data DIR")]
    where, free = disk["directory"], disk["free_bytes"]
    findings: list[Finding] = []
    level: Level
    if row.get("store", {}).get("full"):
        says = f"the disk of {where} is full, and it promises nothing that it cannot keep"
        findings.append(Finding(name, "error", says, "make room; it goes on by itself"))
    if damaged := row.get("store", {}).get("archive_damaged"):
        says = f"{damaged} archived records in {where} are damaged; it treats them as missing"
        how = "look at the disk; without its store it fetches everything from the others"
        findings.append(Finding(name, "warning", says, how))
    if not disk["writable"]:
        says = f"it may not write to {where}"
        findings.append(Finding(name, "error", says, "give the directory to the broker's user"))
    if free is not None and free < LITTLE_BYTES:
        level = "error" if free < TOO_LITTLE_BYTES else "warning"
        says = f"{free / 1e6:,.0f} MB are free at {where}"
        findings.append(Finding(name, level, says, "make room before it is full"))
    aside = disk["set_aside"]
    if aside:
        level = "error" if len(aside) >= MAX_ASIDE else "warning"
        says = f"its store was damaged and set aside: {', '.join(aside)} in {where}"
        findings.append(Finding(name, level, says, "look at the disk, then move the files away"))
    if not findings:
        room = "" if free is None else f" with {free / 1e9:,.1f} GB free"
        findings.append(Finding(name, "ok", f"keeps its store in {where}{room}"))
    return findings


def _lost_stores(rows: Rows) -> Iterator[Finding]:
    """Brokers that joined a running log without data, unless they were only started late."""
    for name, row in rows.items():
        late = any(log.get("forgotten") for log in row.get("logs", {}).values())
        if not (late and row["disk"].get("began_empty")):
            continue
        others = [rows[peer] for peer in rows if peer != name]
        was_there = any(_met_before(other, name, row) for other in others)
        cell_is_new = all(other["disk"].get("began_empty") for other in others)
        if was_there or not cell_is_new:
            when = "had taken part before" if was_there else "the log had begun long before"
            says = f"it found no store in {row['disk']['directory']} when it started, and {when}"
            advice = "see that --data names its own directory"
            yield Finding(name, "warning", says, advice)


def _met_before(other: Row, name: str, row: Row) -> bool:
    """Whether `other` has met this broker before its present process started."""
    met: float | None = other["brokers"].get(name, {}).get("met_s_ago")
    return met is not None and met > row.get("uptime_s", met) + APART_S


def _epoch(manifest: Manifest, name: str, row: Row, directory: Path) -> list[Finding]:
    if row["epoch"] == manifest.epoch:
        return []
    if row["epoch"] > manifest.epoch:
        says = f"it runs epoch {row['epoch']}, and the manifest here is epoch {manifest.epoch}"
        return [Finding(name, "error", says, "get the new manifest from the operator")]
    says = f"it still runs epoch {row['epoch']}, and the manifest is epoch {manifest.epoch}"
    advice = f"copy {directory / MANIFEST} to it; its log says if it refused"
    return [Finding(name, "error", says, advice)]


def _catching_up(name: str, row: Row) -> Iterator[Finding]:
    lacks = row.get("catching_up")
    if lacks:
        says = f"it is catching up ({', '.join(lacks[:NAMED_PROBLEMS])})"
        advice = "restart no other broker meanwhile; if it does not end, start those that are down"
        yield Finding(name, "warning", says, advice)


def _uplinks(name: str, row: Row) -> Iterator[Finding]:
    """Brokers that cannot reach a parent cell."""
    for uplink in row.get("uplinks", ()):
        parent, troubles = uplink["parent"], uplink["brokers"]
        linked = sum(not trouble for trouble in troubles.values())
        if uplink["trouble"]:
            says = f"it gets nothing from its parent {parent}: {uplink['trouble']}"
            yield Finding(name, "warning", says, "it looks at the parent's files every second")
        elif linked < uplink["needed"]:
            why = next(trouble for trouble in troubles.values() if trouble)
            says = f"it is linked to {linked} of {len(troubles)} brokers of its parent {parent}"
            says += f", and {uplink['needed']} are needed ({why})"
            yield Finding(name, "warning", says, f"look at cell {parent} with 'quorumcast status'")


def _faults(name: str, row: Row) -> Iterator[Finding]:
    if row["faults"]:
        says = f"it misbehaves on request ({', '.join(row['faults'])})"
        advice = f"quorumcast faults clear {name}"
        yield Finding(name, "warning", says, advice)


def _liars(manifest: Manifest, rows: Rows) -> Iterator[Finding]:
    """Nodes that a broker can prove to have lied."""
    holders: dict[str, list[str]] = {}
    for name, row in rows.items():
        for accused in members_among(manifest, row["accusations"]):
            holders.setdefault(accused, []).append(name)
    for accused, who in sorted(holders.items()):
        says = f"it is proven to have lied; {', '.join(who)} {_verb(who)} the evidence"
        yield Finding(accused, "warning", says, _exclusion(manifest, accused))


def _exclusion(manifest: Manifest, accused: str) -> str:
    node = holder(accused)
    command = f"members replace {node} NAME --host HOST --port PORT"
    if manifest.broker(node) is None:
        command = f"epoch remove-client {node}"
    return (
        "check the files in the evidence directory with 'quorumcast verify', then exclude "
        f"{node} with 'quorumcast {command}'"
    )


def _faulty(rows: Rows) -> list[str]:
    """Brokers that answer and misbehave on request, or are proven to have lied."""
    proven = {accused for row in rows.values() for accused in row["accusations"]}
    return [name for name, row in rows.items() if row["faults"] or name in proven]


def _too_many_faulty(manifest: Manifest, rows: Rows) -> Iterator[Finding]:
    faulty = _faulty(rows)
    if len(faulty) > manifest.f:
        says = (
            f"{', '.join(faulty)} are faulty, and f is {manifest.f}: the cell promises nothing any "
            "more"
        )
        advice = "clear faults that were set, and replace brokers that are proven to have lied"
        yield Finding("quorum", "error", says, advice)


def _verb(who: list[str]) -> str:
    return "have" if len(who) > 1 else "has"


def _links(name: str, row: Row, troubles: dict[str, str]) -> Iterator[Finding]:
    """Missing links to running brokers; other checks report brokers that are down."""
    for peer, link in row["brokers"].items():
        if not link["up"] and not troubles.get(peer, "?"):
            why = f" ({link['trouble']})" if link["trouble"] else ""
            says = f"it has no link to {peer}{why}"
            advice = "check the network between the two"
            yield Finding(name, "warning", says, advice)


def _floods(manifest: Manifest, name: str, row: Row) -> Iterator[Finding]:
    """Clients that were throttled because they requested too much."""
    for client in members_among(manifest, row.get("load", {})):
        load = row["load"][client]
        if load["disconnected"]:
            says = (
                f"it has disconnected {client} {load['disconnected']} times, because its requests "
                f"took too much processor time ({load['requests_s']:,.1f} s in all)"
            )
            advice = f"see what {client} does; if it means harm, remove it from the manifest"
            yield Finding(name, "warning", says, advice)


def _suspects(manifest: Manifest, rows: Rows) -> Iterator[Finding]:
    """Nodes that at least f+1 brokers suspect, so at least one correct broker."""
    by: dict[str, dict[str, set[str]]] = {}
    for name, row in rows.items():
        for suspect in members_among(manifest, row["suspicions"]):
            by.setdefault(suspect, {})[name] = set(row["suspicions"][suspect])
    for suspect, accusers in sorted(by.items()):
        if len(accusers) >= manifest.quorums.one_correct:
            reasons = ", ".join(sorted(set().union(*accusers.values())))
            says = f"{', '.join(accusers)} suspect it ({reasons})"
            advice = "look at its log; a suspicion is no proof"
            yield Finding(suspect, "warning", says, advice)


def _logs(manifest: Manifest, rows: Rows) -> Iterator[Finding]:
    """Whether brokers agree on the leader of each log, and have similar progress."""
    for log in dict.fromkeys(log for row in rows.values() for log in row.get("logs", {})):
        progress = {name: row["logs"][log] for name, row in rows.items() if log in row["logs"]}
        yield from _log(manifest, log, progress)


def _waits(row: Row) -> list[str]:
    """Logs with pending work."""
    return [
        log
        for log, state in row.get("logs", {}).items()
        if state["executed"] < state["decided"] or row.get("sizes", {}).get(f"{log}/offers", 0)
    ]


def _stalled(rows: Rows, before: Rows) -> Iterator[Finding]:
    """Brokers with pending work in a log and no progress since `before`."""
    for name, row in rows.items():
        for log in _waits(row):
            now, then = row["logs"][log], before.get(name, {}).get("logs", {}).get(log, {})
            if any(now[what] != then.get(what) for what in ("decided", "executed")):
                continue
            says = f"publications wait in log {log}, and no batch was decided for a while"
            if now["executed"] < now["decided"]:
                says = (
                    f"it stands at batch {now['executed']:,} of {now['decided']:,} in log {log}, "
                    "and lacks the contents of the next one"
                )
            advice = "start the brokers that are down; one of them may have it; then see the logs"
            yield Finding(name, "error", says, advice)


def _log(manifest: Manifest, log: str, progress: dict[str, dict[str, Any]]) -> list[Finding]:
    about = f"log {log}"
    views = Counter((s["leader"], s["regency"]) for s in progress.values())
    (leader, regency), agreeing = views.most_common(1)[0]
    furthest = max(one["decided"] for one in progress.values())
    findings: list[Finding] = []
    if agreeing < manifest.quorums.responders:
        says = f"only {agreeing} brokers follow one leader ({leader}, regency {regency})"
        advice = "start the brokers that are down; look again in a few seconds"
        findings.append(Finding(about, "error", says, advice))
    reach = 2 * max((terms.checkpoint for terms in manifest.logs.values()), default=1)
    for name, one in progress.items():
        if (one["leader"], one["regency"]) != (leader, regency):
            says = f"it follows {one['leader']} in regency {one['regency']} of log {log}"
            advice = f"look again in a few seconds; most follow {leader} in regency {regency}"
            findings.append(Finding(name, "warning", says, advice))
        if furthest - one["executed"] > reach:
            says = f"it has executed {one['executed']:,} of {furthest:,} batches of log {log}"
            advice = "look again in a few seconds; if it does not catch up, see its log"
            findings.append(Finding(name, "warning", says, advice))
    if not findings:
        says = f"{leader} leads in regency {regency}; batches decided so far: {furthest:,}"
        findings.append(Finding(about, "ok", says))
    return findings


def _quorum(manifest: Manifest, troubles: dict[str, str], rows: Rows, directory: Path) -> Finding:
    answer = [name for name, trouble in troubles.items() if not trouble or name in rows]
    n, needed = len(manifest.brokers), manifest.quorums.responders
    if len(answer) < needed:
        command = starting_command(manifest, directory)
        return Finding(
            "quorum",
            "error",
            f"{len(answer)} of {n} brokers answer, and {needed} are needed",
            f"start the others, with '{command}' or 'quorumcast broker'",
        )
    faulty = _faulty(rows)
    spare = len(answer) - needed - len(faulty)
    known = f", {', '.join(faulty)} {'are' if len(faulty) > 1 else 'is'} faulty" if faulty else ""
    more = f"{spare} more may fail" if spare > 0 else "no other may fail"
    return Finding("quorum", "ok", f"{len(answer)} of {n} brokers answer{known}; {more}")
