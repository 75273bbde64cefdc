"""The known-bad variants of trees: what a child cell could get wrong, and attacks that show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from quorumcast.broadcast import acceptance
from quorumcast.broadcast.relayed import RelayLedger
from quorumcast.cell.subscribing import uplink
from quorumcast.core.quorum import Broadcast, Protection, Quorums, accept_votes
from quorumcast.crypto.digest import HASHERS
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.cells import PUBLISHERS, channel_entry
from quorumcast.sim.cell.drawing.draft import ORDERS
from quorumcast.sim.cell.plan import small_limits
from quorumcast.sim.cell.rows import COLUMNS
from quorumcast.sim.kernel.known_bad import Patch, Variant
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Corruption
from quorumcast.sim.tree.plan import Branch, TreePlan

PUB = PUBLISHERS[0]
#: A cell below the root and one below that.
UPPER, LEAF = Branch(name="a"), Branch(name="aa")
CHAIN: tuple[Branch, ...] = (UPPER, LEAF)
#: Publications that brokers retain where some are to be lost.
FEW = 16


def tree_plan(
    policy: str,
    corruptions: Sequence[Corruption] = (),
    acts: Sequence[Act] = (),
    *,
    retained: int = 0,
    publications: int = 20,
    carried: Sequence[str] = (),
) -> Callable[[int], TreePlan]:
    """Plans that differ in their seeds only: a busy publisher, and readers at both levels.

    `carried`: the rows that the upper cell and the leaf carry on; none for bytes without columns.
    """
    limits = small_limits()
    if retained:
        limits = replace(
            limits, retained_publications=retained, window=8, segment=4, vote_window=retained
        )
    rules = Policy.named(policy, alpha=4, limits=limits)
    joins = [Act(5, "join", reader, ORDERS) for branch in CHAIN for reader in branch.readers]
    work = [Act(60 + 15 * n, "submit", PUB, ORDERS, 1) for n in range(publications)]
    entry, branches = channel_entry(ORDERS, rules), CHAIN
    if carried:
        entry = replace(entry, schema=COLUMNS)
        rows = zip(CHAIN, carried, strict=True)
        branches = tuple(replace(branch, where=where) for branch, where in rows)
    plan = TreePlan(
        seed="",
        policy=rules,
        brokers=4,
        f=1,
        branches=branches,
        weather=Weather(latency_ms=1, jitter_ms=3),
        publishers=(PUB,),
        subscribers=(*UPPER.readers, *LEAF.readers),
        channels=(entry,),
        acts=tuple(sorted((*joins, *work, *acts), key=lambda act: act.at_ms)),
        corruptions=tuple(corruptions),
        calm_at_ms=100 + 15 * publications,
        adversary="siege",
    )
    return lambda seed: replace(plan, seed=f"siege {policy} {seed}")


# ------------------------------------------------------------- the mistakes


def _accept_at_f(quorums: Quorums, protection: Protection, broadcast: Broadcast) -> int:
    right = accept_votes(quorums, protection, broadcast)
    return quorums.f if broadcast in (Broadcast.RELAY, Broadcast.RELAYED_ORDER) else right


def _leave_nothing_out(ledger: RelayLedger, upto: int) -> None:
    lost = max(0, upto + 1 - ledger.next)
    ledger.extend([HASHERS["sha256"](b"")] * lost, [b""] * lost)


def _ask_for_fewer(entry: ChannelEntry) -> tuple[str, ...]:
    return (f"({entry.carried}) AND (name = 'a')",) if entry.carried else ()


# --------------------------------------------------------------- the variants

#: The upper cell and the leaf are cut off for so long that the root drops what they lack.
AWAY = (
    Act(
        450,
        "partition",
        peers=(*UPPER.broker_names, *UPPER.uplinks, *UPPER.readers, *LEAF.uplinks),
    ),
    Act(900, "heal"),
)

VARIANTS = (
    Variant(
        "child-at-f",
        "a reader of a child cell accepts at f votes",
        [Patch(acceptance, "accept_votes", _accept_at_f)],
        tree_plan("ab", [Corruption(LEAF.broker_names[1], "alter", 0, 100, ("contents",))]),
        ("Authenticity",),
    ),
    Variant(
        "child-at-f-in-order",
        "a reader of a child cell believes f brokers about a position",
        [Patch(acceptance, "accept_votes", _accept_at_f)],
        tree_plan("total", [Corruption(LEAF.broker_names[1], "alter", 0, 100, ("contents",))]),
        ("Authenticity", "Total order"),
    ),
    Variant(
        "hole-as-nothing",
        "a relaying broker passes over a hole as if nothing had been published there",
        [Patch(RelayLedger, "leave_out", _leave_nothing_out)],
        tree_plan("ab", acts=AWAY, retained=FEW, publications=60),
        ("Vouching", "Authenticity", "Sound statements"),
    ),
    Variant(
        "narrow-uplink",
        "an uplink asks for fewer rows than its cell is to carry on",
        [Patch(uplink, "_asked", _ask_for_fewer)],
        tree_plan("ab", carried=("price IS NOT NULL", "price < 11")),
        ("Completeness", "Sound results", "Vouching"),
    ),
)
