"""The text of `quorumcast channel create --help`: policies, columns and limits of a channel."""

from __future__ import annotations

from quorumcast.core.limits import FOREVER_MS, Limits

#: What each policy tolerates and promises, for n brokers of which f may be faulty.
POLICIES = {
    "direct-crash": "n > f; f brokers may crash",
    "direct": "n > 2f; f brokers may lie, publishers are trusted",
    "ab": "n > 3f; brokers and publishers may lie: agreement",
    "ab+history": "the same; subscribers differ by 2 ALPHA events at most",
    "brb": "n > 3f; all subscribers get an event, or none",
    "chain": "n > 3f; agreement, and the fewest messages",
    "chain+history": "the same; subscribers differ by 2 ALPHA events at most",
    "total": "n > 3f; one order of all events, for everybody",
    "total-crash": "n > 2f; one order, if brokers only crash",
}
SUFFIXES = {
    "+durable": "behind total and total-crash: events are kept on disk",
    "+journal": "behind another: brokers keep their word across restarts",
}
#: Types of columns, in lines.
TYPES = (
    "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64,",
    "float32, float64, string, binary, date32, timestamp[us],",
    "timestamp[ms, UTC], timestamp[us, UTC]",
)
#: What each limit bounds.
LIMITS = {
    "retained_publications": "publications kept per publisher",
    "retained_bytes": "bytes of contents kept per publisher",
    "retained_ms": "milliseconds for which they are kept",
    "cached_bytes": "durable: newest contents in memory",
    "window": "publications beyond the settled ones",
    "streams_per_publisher": "incarnations of a publisher kept",
    "publishers": "clients that publish at a time",
    "subscribers": "clients that subscribe at a time",
    "publisher_buffer": "unacknowledged publications",
    "publisher_bytes": "bytes of them",
    "vote_window": "numbers ahead whose votes are counted",
    "segment": "publications per signed statement",
    "kept_segments": "signed statements kept by subscribers",
    "replay": "publications per request for old ones",
    "pipeline": "total order: batches at a time",
    "checkpoint": "total order: decisions per checkpoint",
    "validity_ms": "validity of publications; 0 is forever",
    "queue": "publications waiting at a subscriber",
    "wait_ms": "wait for slow subscribers; 0 is never",
}


def _list(title: str, lines: list[str]) -> str:
    # The first character makes the option parser keep the ends of lines.
    return "\n".join(["\b", title, *(f"  {line}" for line in lines)])


def _default(name: str) -> str:
    value = getattr(Limits(), name)
    return "forever" if value == FOREVER_MS else f"{value:,}"


CREATE = "\n\n".join(
    [
        "Create a channel; running brokers adopt it without a restart.",
        "What follows NAME may be left out, as in trades:total or trades:brb::alice. ALPHA is the "
        "number of publications between two histories: 100, or 10-400 for one that adapts; "
        "100-1024 if left out. PUBLISHERS and SUBSCRIBERS are names with commas, "
        "everyone if left out, and - for nobody.",
        _list(
            "POLICY, with n brokers of which f may be faulty (ab+history if left out):",
            [f"{name:14} {meaning}" for name, meaning in (POLICIES | SUFFIXES).items()],
        ),
        "With --column the channel has a schema: events are rows of these columns. Without one "
        "they are bytes. Columns can be added later.",
        _list("TYPE of a column:", list(TYPES)),
        _list(
            "NAME of a --limit, its default (durable channels retain everything), meaning:",
            [f"{name:21} {_default(name):>13}  {meaning}" for name, meaning in LIMITS.items()],
        ),
    ]
)
