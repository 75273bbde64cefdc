"""Rows and predicates: channels with columns, and subscribers that want some rows only.

All choices come from a random generator of their own, so that everything else that a seed draws
stays as it was. On chains there are no predicates.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from quorumcast.core.ids import NodeId
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import Role
from quorumcast.sim.cell.drawing.draft import Draft
from quorumcast.sim.cell.drawing.extras import may_corrupt
from quorumcast.sim.cell.harm import RETAINING, applicable
from quorumcast.sim.cell.rows import COLUMNS
from quorumcast.sim.kernel.plan import Act

#: Predicates that select few rows, many, all or none, by all kinds of tests.
PREDICATES = (
    "price < 1",
    "price >= 0",
    "price = 0",
    "price <> 1.5",
    "NOT (price > 0)",
    "price IS NULL",
    "price BETWEEN -1 AND 1.25",
    "size > 9007199254740992",
    "size IN (1, 2, 7)",
    "size < 2.5 AND name = 'a'",
    "size IS NOT NULL AND NOT (size = 0)",
    "name = 'ab'",
    "name LIKE 'a%'",
    "name > 'a' OR hot = TRUE",
    "hot = FALSE AND price < 11",
    "name IS NULL OR size = -1",
    "TRUE",
    "FALSE",
)
#: Faults that mean nothing without predicates.
FAULTS = tuple(name for name, entry in CATALOGUE.items() if entry.of_rows)
#: Predicates of a subscriber on a channel, and how often they change amid traffic.
AT_ONCE, CHANGES = (1, 1, 1, 2, 3, 12), (0, 0, 0, 1, 2, 4)


def draw_rows(draft: Draft) -> None:
    """In most runs, channels have columns, and most subscribers ask for some rows."""
    rng = random.Random(f"rows {draft.seed}")
    aimed = draft.adversary in FAULTS
    if draft.policy.chained or (rng.randrange(6) == 0 and not aimed):
        return
    bare = rng.randrange(8) == 0 and len(draft.channels) > 1
    draft.channels = tuple(
        entry if bare and place else replace(entry, schema=COLUMNS)
        for place, entry in enumerate(draft.channels)
    )
    columned = [entry.name for entry in draft.channels if entry.schema]
    first = draw_selections(
        draft, rng, (*draft.subscribers, *draft.extra_subscribers), 8 if aimed else 6
    )
    _draw_faults(draft, rng)
    may_widen = draft.newcomers or any(act.what == "retain" for act in draft.acts)
    if may_widen and rng.randrange(2):
        at = rng.randrange(draft.safety_ms)
        draft.act(at, "widen", channel=rng.choice(columned))
    # Subscribers that join at once ask for rows at once.
    draft.acts[:0] = first


def draw_selections(
    draft: Draft, rng: random.Random, readers: Iterable[NodeId], most: int
) -> list[Act]:
    """Let readers change what they ask for amid traffic, on channels with columns.

    Returns what `most` of 8 of them ask for before they join.
    """
    draft.predicates = tuple(
        tuple(rng.sample(PREDICATES, rng.choice(AT_ONCE))) for _ in range(rng.randrange(2, 6))
    )
    columned = [entry.name for entry in draft.channels if entry.schema]
    first: list[Act] = []
    for reader in readers:
        for channel in [name for name in draft.readable(reader) if name in columned]:
            if rng.randrange(8) < most:
                wanted = rng.randrange(len(draft.predicates)) + 1
                first.append(Act(0, "select", reader, channel, wanted))
            for _ in range(rng.choice(CHANGES)):
                wanted = rng.randrange(len(draft.predicates) + 1)
                draft.act(rng.randrange(draft.safety_ms), "select", reader, channel, wanted)
    return first


def draw_lies(
    draft: Draft,
    rng: random.Random,
    lies: Sequence[str],
    fits: Callable[[NodeId], bool] = lambda broker: True,
) -> None:
    """Let brokers that may be faulty lie about rows: all of them, or those that lie already."""
    liars = [name for name in draft.corruptible if name in draft.corrupted]
    for broker in draft.corruptible if may_corrupt(draft) else liars:
        if fits(broker):
            start = rng.choice((0, 0, rng.randrange(draft.safety_ms)))
            draft.corrupt(broker, rng.choice(lies), start, rng.choice((100, 60, 25)))


def _draw_faults(draft: Draft, rng: random.Random) -> None:
    """Let brokers lie about rows, and the last subscriber ask for too much, if they are honest."""
    spared = (*RETAINING, "none", "lag")
    if draft.adversary in spared or any(act.what == "faults" for act in draft.acts):
        return
    fitting = [name for name in FAULTS if applicable(name, draft.policy)]
    lies, demands = (
        [name for name in fitting if CATALOGUE[name].role is role]
        for role in (Role.BROKER, Role.SUBSCRIBER)
    )
    if lies and rng.randrange(2):
        draw_lies(draft, rng, lies)
    last = draft.subscribers[-1]
    honest = len(draft.subscribers) > 1 and last not in draft.corrupted
    if demands and honest and rng.randrange(6) == 0:
        draft.corrupt(last, rng.choice(demands), 0, rng.choice((100, 50)))
