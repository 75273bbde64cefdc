"""Subscribers whose applications stop reading, on channels on which publishers wait for them."""

from __future__ import annotations

import random

from msgspec.structs import replace

from quorumcast.core.limits import MAX_WAIT_MS, WINDOWS_RETAINED
from quorumcast.sim.cell.drawing.draft import Draft
from quorumcast.sim.cell.epochs import STEPS

#: Publications of one submission while a subscriber reads nothing.
AMOUNT = 16


def draw_slow_readers(draft: Draft) -> None:
    """Publishers wait: for ever as far as this run is concerned, or only a moment."""
    rng = random.Random(f"slow {draft.seed}")
    operated = draft.newcomers or any(act.what in STEPS for act in draft.acts)
    fits = draft.adversary != "none" and not (draft.policy.total or operated)
    if rng.randrange(8) or not fits:
        return
    limits, liar = draft.policy.limits, draft.subscribers[-1]
    # A liar may make publishers wait for as long as that, which is longer than promises take.
    lies = len(draft.subscribers) > 1 and liar not in draft.corrupted and rng.randrange(3) == 0
    readers = (*draft.subscribers, *draft.extra_subscribers)
    liars = lies or any(reader in draft.corrupted for reader in readers)
    limits = replace(
        limits,
        wait_ms=rng.choice((100, 400, 1500) if liars else (MAX_WAIT_MS, MAX_WAIT_MS, 400)),
        retained_publications=max(WINDOWS_RETAINED * limits.window, 32),
    )
    draft.policy = replace(draft.policy, limits=limits)
    draft.channels = tuple(replace(entry, policy=draft.policy) for entry in draft.channels)
    draft.safety_ms = max(draft.safety_ms, 3500)
    for reader in draft.subscribers:
        if rng.randrange(3) == 0:
            continue
        at = rng.randrange(1200, 2400)
        draft.act(at, "stall", reader)
        if rng.randrange(4):
            draft.act(at + rng.randrange(100, 1500), "wake", reader)
        for publisher in draft.publishers:
            for channel in draft.writable(publisher):
                for _ in range(rng.randrange(2 + 2 * limits.retained_publications // AMOUNT)):
                    when = at + rng.randrange(800)
                    draft.act(when, "submit", publisher, channel, AMOUNT)
    if lies:
        draft.corrupt(liar, "never-reads", 0, rng.choice((100, 50)))
