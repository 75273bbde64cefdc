"""Descriptions of channels: their entry in the manifest, and the progress of brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorumcast.cli.common import Rows, console, table

if TYPE_CHECKING:
    from rich.table import Table

    from quorumcast.manifest.manifest import ChannelEntry, Manifest

NOBODY = "nobody"


def channel_facts(cell: Manifest, entry: ChannelEntry) -> dict[str, Any]:
    """The manifest's entry of a channel.

    `on_disk` tells whether brokers store it. Channels of one log share a store, so a channel is
    stored if its log is durable.
    """
    import msgspec

    from quorumcast.manifest.retention import retention_of

    policy = entry.policy
    stored = policy.log is not None and cell.logs[policy.log].durable
    on_disk = "publications" if stored else "promises" if policy.journal else ""
    return {
        "name": entry.name,
        "policy": policy.name,
        "title": policy.title,
        "described": policy.described,
        "origin": _origin(entry),
        "on_disk": on_disk,
        "retention": retention_of(policy.limits),
        "durable": policy.durable,
        "journal": policy.journal,
        "alpha": policy.alpha,
        "alpha_max": policy.alpha_max,
        "publishers": list(entry.publishers),
        "subscribers": list(entry.subscribers),
        "schema": [{"name": name, "type": kind} for name, kind in entry.schema],
        "overflow": entry.overflow.value,
        "groups": msgspec.to_builtins(entry.groups),
        "limits": msgspec.to_builtins(policy.limits),
    }


def _origin(entry: ChannelEntry) -> dict[str, str] | None:
    """Where a relayed channel comes from, and which rows it carries on ("" for all)."""
    if not entry.origin:
        return None
    return {
        "cell": entry.origin.cell,
        "channel": entry.origin.channel,
        "where": entry.origin.where,
    }


def live_facts(entry: ChannelEntry, rows: Rows) -> dict[str, Any]:
    """The progress of each broker; None for one that does not answer.

    With total order `last` is a position; otherwise it counts the publications of all streams.
    """
    facts: dict[str, Any] = {}
    for broker, row in rows.items():
        if not row["up"]:
            facts[broker] = None
            continue
        streams = [s for s in row["streams"] if s["stream"].rpartition("/")[0] == entry.name]
        facts[broker] = {
            "streams": len(streams),
            "last": sum(s["next"] - 1 for s in streams),
            "held": sum(s["next"] - s["base"] for s in streams),
        }
    return facts


def channel_users(channel: str, rows: Rows) -> str:
    """The present publishers and subscribers, according to the brokers that answer; or ""."""
    told = []
    for what, one, many in (
        ("publishers", "publishes", "publish"),
        ("subscribers", "subscribes", "subscribe"),
    ):
        pages = [row.get("users", {}).get(what, {}) for row in rows.values()]
        found = sorted({name for page in pages for name in page.get(channel, ())})
        if found:
            told.append(f"{', '.join(found)} {one if len(found) == 1 else many}")
    return " and ".join(told)


def channel_table(cell: Manifest, facts: list[dict[str, Any]], brokers: tuple[str, ...]) -> Table:
    """A table of channels: their properties or, with brokers, how far each broker is."""
    from rich.markup import escape

    title = f"cell {cell.cell}, epoch {cell.epoch}"
    if brokers:
        title += "; below each broker: publications taken so far"
    properties: tuple[str, ...] = ("on disk", "publishers", "subscribers", "columns")
    if brokers:
        properties = ()
    elif any(fact["origin"] for fact in facts):
        properties = ("comes from", *properties)
    columns = ("channel", "policy", "keeps", *properties)
    found = table(*columns, right=brokers, fold=True, simple=True, title=title)
    for fact in facts:
        shown = {
            "comes from": escape(_comes_from(fact["origin"])),
            "on disk": fact["on_disk"],
            "publishers": _rights(fact["publishers"]),
            "subscribers": _rights(fact["subscribers"]),
            "columns": ", ".join(column["name"] for column in fact["schema"]) or "bytes",
        }
        found.add_row(
            fact["name"],
            fact["described"],
            fact["retention"],
            *(shown[name] for name in properties),
            *(_far(fact["live"][broker]) for broker in brokers),
        )
    return found


def show_channel(entry: ChannelEntry, facts: dict[str, Any]) -> None:
    """Print one channel, a line per property."""
    from quorumcast.core.limits import EVERYTHING
    from quorumcast.manifest.successor import LIVE_LIMITS

    lines = {
        "channel": facts["name"],
        "policy": facts["described"],
        **({"comes from": _comes_from(facts["origin"])} if facts["origin"] else {}),
        "keeps": facts["retention"],
        "on disk": facts["on_disk"] or "nothing",
        "publishers": _rights(facts["publishers"]),
        "subscribers": _rights(facts["subscribers"]),
        "columns": ", ".join(f"{c['name']} {c['type']}" for c in facts["schema"]) or "bytes",
    }
    lines["when a queue is full"] = facts["overflow"]
    for group in facts["groups"]:
        lines[f"shared as {group['name']}"] = _group(group)
    for name, value in facts["limits"].items():
        shown = f"{value:,}" if value < EVERYTHING else "everything"
        lines[f"limit {name}"] = shown + ("" if name in LIVE_LIMITS else "  (stays)")
    for broker, far in facts.get("live", {}).items():
        held = "" if far is None else f" publications taken, of which it holds {far['held']:,}"
        lines[f"at {broker}"] = f"{_far(far)}{held}"
    out = console()
    for name, text in lines.items():
        out.print(f"{name:30} {text}", markup=False, soft_wrap=True)


def _group(group: dict[str, Any]) -> str:
    attempts = group["max_attempts"]
    often = f"{attempts} attempts" if attempts else "tried without end"
    where = f", then to {group['dead_letter']}" if group["dead_letter"] else ""
    return f"{_rights(group['members'])}; {often}{where}; {group['ack_timeout_ms'] / 1000:g} s"


def _comes_from(origin: dict[str, str] | None) -> str:
    if origin is None:
        return ""
    rows = f", where {origin['where']}" if origin["where"] else ""
    return f"{origin['channel']} of {origin['cell']}{rows}"


def _rights(names: list[str]) -> str:
    from quorumcast.manifest.manifest import EVERYONE

    if EVERYONE in names:
        return "everyone"
    return ", ".join(names) or NOBODY


def _far(live: dict[str, Any] | None) -> str:
    return "down" if live is None else f"{live['last']:,}"
