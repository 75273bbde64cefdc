"""Rows in trees: what each cell carries on, and what readers of all levels ask for.

A cell carries on rows of those that its parent has, as its manifest says (`ChannelOrigin.where`).
As in a cell, all choices come from a random generator of their own.
"""

from __future__ import annotations

import random

from msgspec.structs import replace

from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import Role
from quorumcast.sim.cell.drawing.draft import Draft
from quorumcast.sim.cell.drawing.rows import FAULTS, PREDICATES, draw_lies, draw_selections
from quorumcast.sim.cell.harm import applicable
from quorumcast.sim.cell.rows import COLUMNS
from quorumcast.sim.tree.plan import ROOT, Branch, cell_name_of

#: Rows that a cell may carry on, each with some that a cell below it may.
CARRIED = {
    "TRUE": ("price < 1", "TRUE", "name LIKE 'a%' OR size IS NULL"),
    "price < 11": ("price < 11", "price BETWEEN -1 AND 1.25", "price = 0", "price < 0.5"),
    "price >= 0 OR hot = TRUE": ("price > 0", "hot = TRUE AND size = 1", "price >= 0"),
    "size IS NOT NULL": ("size > 0", "size IN (1, 2, 7)", "size > 9007199254740992"),
    "name LIKE 'a%'": ("name = 'ab'", "name LIKE 'ab%'", "name LIKE 'a%'"),
    "NOT (price > 0)": ("price <= 0", "price = 0", "price < -1"),
    "hot = FALSE": ("hot = FALSE AND price < 11", "hot = FALSE"),
    "size < 2.5 AND name <> 'b'": ("size < 0 AND name = 'a'", "size IN (0, 1) AND name > 'b'"),
}


def draw_rows(draft: Draft, branches: tuple[Branch, ...]) -> tuple[Branch, ...]:
    """In most trees channels have columns, cells carry on some rows, and readers ask for some.

    Returns the cells below the root with the rows that they carry on.
    """
    rng = random.Random(f"tree rows {draft.seed}")
    aimed = draft.adversary in FAULTS
    if rng.randrange(5) == 0 and not aimed:
        return branches
    draft.channels = tuple(replace(entry, schema=COLUMNS) for entry in draft.channels)
    # On a chain there are no predicates; below it there are.
    chained = draft.policy.chained
    readers = [r for r in draft.subscribers if not (chained and cell_name_of(r) == ROOT)]
    first = draw_selections(draft, rng, readers, 8 if aimed else 5)
    if draft.adversary != "none" and not draft.policy.crash_only and not rng.randrange(2):
        lies = [name for name in FAULTS if CATALOGUE[name].role is Role.BROKER]
        at_root = applicable(lies[0], draft.policy)
        draw_lies(draft, rng, lies, lambda broker: at_root or cell_name_of(broker) != ROOT)
    # Readers that join at once ask for rows at once.
    draft.acts[:0] = first
    return _draw_carried(rng, branches, chained=chained)


def _draw_carried(
    rng: random.Random, branches: tuple[Branch, ...], *, chained: bool
) -> tuple[Branch, ...]:
    """Let cells carry on some rows, of those that their parents have."""
    found: dict[str, Branch] = {}
    for branch in branches:
        above = found.get(branch.name[:-1])
        where = above.where if above is not None else ""
        if where:
            fewer = (where, f"({where}) AND ({rng.choice(PREDICATES)})", *CARRIED.get(where, ()))
            where = rng.choice(fewer)
        elif rng.randrange(3) and not (chained and above is None):
            where = rng.choice((*CARRIED, rng.choice(PREDICATES)))
        found[branch.name] = replace(branch, where=where)
    return tuple(found.values())
