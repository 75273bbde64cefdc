"""Acts of clients: subscribe, publish, read the past, ask for receipts, crash and restart."""

from __future__ import annotations

import random

from quorumcast.core.ids import NodeId
from quorumcast.sim.cell.drawing.draft import ORDERS, Draft

#: Publications of one submission; the large ones are for streams that outgrow retention.
AMOUNTS, LARGE_AMOUNTS = (1, 1, 1, 2, 3, 8), (4, 8, 8, 16, 24)


def draw_readers(draft: Draft) -> None:
    """Subscribers join, some late; some leave and return."""
    rng = draft.rng
    for index, subscriber in enumerate(draft.subscribers):
        for channel in draft.readable(subscriber):
            late = index > 0 and rng.randrange(3) == 0
            joins = draft.random_time() if late else rng.randrange(20)
            draft.act(joins, "join", subscriber, channel)
            if index > 0 and rng.randrange(5) == 0:
                leaves = joins + rng.randrange(50, 300)
                draft.act(leaves, "leave", subscriber, channel)
                if rng.randrange(2):
                    draft.act(leaves + rng.randrange(1, 100), "join", subscriber, channel)


def draw_workload(draft: Draft) -> None:
    """Publishers submit at random times, more at once if retention is short."""
    rng = draft.rng
    start = rng.choice((0, 60, 60))
    for publisher in draft.publishers:
        for channel in draft.writable(publisher):
            submissions = rng.randrange(15, 50) if draft.long else rng.randrange(4, 16)
            for _ in range(submissions // 2 if draft.short_retention else submissions):
                at = start + rng.randrange(max(1, draft.safety_ms - start))
                amount = rng.choice(LARGE_AMOUNTS if draft.short_retention else AMOUNTS)
                draft.act(at, "submit", publisher, channel, amount)


def draw_late_readers(draft: Draft) -> None:
    """Subscribers read all that is retained or, with total order, a range of positions."""
    rng = draft.rng
    for reader in draft.subscribers:
        for _ in range(rng.randrange(3)):
            what = rng.choice(("read", "extract") if draft.policy.total else ("read",))
            draft.act(draft.random_time(), what, reader, ORDERS, rng.randrange(1, 80))
    draft.act(draft.safety_ms, "read", draft.subscribers[-1], ORDERS)


def draw_prompt_readers(draft: Draft) -> None:
    """In one run of three, subscribers read what is retained right after an acknowledgement."""
    rng = random.Random(f"prompt {draft.seed}")
    if rng.randrange(3):
        return
    for _ in range(rng.randrange(1, 4)):
        reader, at_ms = rng.choice(draft.subscribers), rng.randrange(draft.safety_ms)
        draft.act(at_ms, "read-promptly", reader, ORDERS)


def draw_requests(draft: Draft) -> None:
    """Subscribers ask for receipts and, with total order, recall positions."""
    rng = draft.rng
    for reader in draft.subscribers:
        for channel in draft.readable(reader):
            for _ in range(rng.randrange(4)):
                draft.act(draft.random_time(), "prove", reader, channel)
            for _ in range(rng.randrange(4) if draft.policy.total else 0):
                draft.act(draft.random_time(), "recall", reader, channel, rng.randrange(1, 60))


def draw_client_crashes(draft: Draft) -> None:
    """Most publishers and subscribers crash once and restart."""
    rng = draft.rng
    for client in draft.clients:
        if rng.randrange(3) == 0:
            continue
        back = _crash(draft, client, draft.random_time(60))
        if client in draft.subscribers:
            draft.act(back + 1, "join", client, ORDERS)


def draw_incarnations(draft: Draft) -> None:
    """Publishers crash repeatedly and publish in between, while a subscriber is cut off."""
    rng = draft.rng
    isolated = rng.choice(draft.subscribers)
    cut = draft.random_time() // 2
    draft.act(cut, "partition", peers=(isolated,))
    draft.act(rng.randrange(cut, draft.safety_ms), "heal")
    for publisher in draft.publishers:
        for _ in range(rng.randrange(2, 9)):
            back = _crash(draft, publisher, draft.random_time(60))
            for channel in draft.writable(publisher):
                amount = rng.choice(LARGE_AMOUNTS if draft.short_retention else AMOUNTS)
                draft.act(back + rng.randrange(1, 40), "submit", publisher, channel, amount)


def draw_resumptions(draft: Draft) -> None:
    """Publishers of a totally ordered channel resume their streams after crashes."""
    rng = random.Random(f"resuming {draft.seed}")
    if not draft.policy.total or rng.randrange(3):
        return
    draft.resuming = tuple(name for name in draft.publishers if name not in draft.corrupted)
    for publisher in draft.resuming:
        for _ in range(rng.randrange(3)):
            at = rng.randrange(60, draft.safety_ms)
            draft.act(at, "crash", publisher)
            draft.act(at + rng.randrange(1, 60), "restart", publisher)


def _crash(draft: Draft, client: NodeId, at_ms: int) -> int:
    """Crash a client; return the time of its restart."""
    back = at_ms + draft.rng.randrange(1, 80)
    draft.act(at_ms, "crash", client)
    draft.act(back, "restart", client)
    return back
