"""Coordinated faults during leader changes: one disturbance for each leader in turn.

A *disturbance* is what happens while a certain broker leads. Disturbances are combined with
`all_of`, `any_of` and `by_kind`. A *script* has one for each successive leader; a new script is one
line in `SCRIPTS`. Brokers lead in manifest order. A leader is replaced after about
`LEADER_TIMEOUT_MS` without progress, so terms are a little longer than that.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quorumcast.core.ids import NodeId
from quorumcast.ordering.leader_change import LEADER_TIMEOUT_MS
from quorumcast.sim.cell.drawing.draft import Draft
from quorumcast.sim.cell.harm import applicable


class Term(msgspec.Struct, frozen=True):
    """The approximate time in which a broker leads."""

    leader: NodeId
    at_ms: int
    until_ms: int


Disturbance = Callable[[Draft, Term], None]


# --------------------------------------------------------------- combinators


def all_of(*parts: Disturbance) -> Disturbance:
    """All of these disturbances."""

    def disturb(draft: Draft, term: Term) -> None:
        for part in parts:
            part(draft, term)

    return disturb


def any_of(*parts: Disturbance) -> Disturbance:
    """One of these disturbances."""
    return lambda draft, term: draft.rng.choice(parts)(draft, term)


def by_kind(faulty: Disturbance, correct: Disturbance) -> Disturbance:
    """One disturbance for a leader that may be faulty, another for a correct one."""
    return lambda draft, term: (faulty if term.leader in draft.corruptible else correct)(
        draft, term
    )


def commit(*faults: str) -> Disturbance:
    """A faulty leader commits one of these from before its term on; `fault:victim` names a victim.

    If the policy covers no such fault, the network loses the leader's packets to some brokers.
    """

    def disturb(draft: Draft, term: Term) -> None:
        fault, _, victim = draft.rng.choice(faults).partition(":")
        if applicable(fault, draft.policy):
            victims = (victim,) if victim else ()
            draft.corrupt(term.leader, fault, max(0, term.at_ms - 50), victims=victims)
        else:
            mute_to_some(draft, term)

    return disturb


# -------------------------------------------------------------- disturbances


def nothing(draft: Draft, term: Term) -> None:
    """The leader is not disturbed."""


def cut_off(draft: Draft, term: Term) -> None:
    """The leader is separated from all other nodes."""
    draft.act(_within(draft, term), "partition", peers=(term.leader,))
    draft.act(term.until_ms + draft.rng.randrange(400), "heal")


def mute_to_some(draft: Draft, term: Term) -> None:
    """Packets of the leader to some brokers are lost, so these never see its batch."""
    others = [name for name in draft.brokers if name != term.leader]
    some = draft.rng.sample(others, draft.rng.randrange(1, len(others)))
    draft.act(_within(draft, term), "mute", term.leader, peers=some)
    draft.act(term.until_ms + draft.rng.randrange(200), "heal")


def pause_leader(draft: Draft, term: Term) -> None:
    """The leader is paused until after its term, then handles everything at once."""
    draft.act(_within(draft, term), "pause", term.leader)
    draft.act(term.until_ms + draft.rng.randrange(20, 500), "resume", term.leader)


def resume_within_term(draft: Draft, term: Term) -> None:
    """The leader is paused before its term and resumes in the middle of it."""
    draft.act(max(0, term.at_ms - draft.rng.randrange(100, 500)), "pause", term.leader)
    draft.act(_within(draft, term), "resume", term.leader)


def crash_leader(draft: Draft, term: Term) -> None:
    """The leader crashes and restarts with its journal; without a journal it is paused."""
    if not draft.policy.journal:
        pause_leader(draft, term)
        return
    draft.act(_within(draft, term), "crash", term.leader, amount=draft.rng.randrange(3))
    draft.act(term.until_ms + draft.rng.randrange(200), "restart", term.leader)


def pause_follower(draft: Draft, term: Term) -> None:
    """Another broker is paused during the term, and must catch up afterwards."""
    follower = draft.rng.choice([name for name in draft.brokers if name != term.leader])
    draft.act(_within(draft, term), "pause", follower)
    draft.act(term.until_ms + draft.rng.randrange(300), "resume", follower)


def _within(draft: Draft, term: Term) -> int:
    return draft.rng.randrange(
        term.at_ms, max(term.at_ms + 1, term.until_ms - LEADER_TIMEOUT_MS // 2)
    )


show_to_some = by_kind(commit("show-to-some", "equivocating-leader"), mute_to_some)
show_and_crash = all_of(show_to_some, by_kind(nothing, crash_leader))
lie_about_batch = by_kind(
    commit("false-stop-data:nothing", "false-stop-data:newer", "false-stop-data:invention",
           "false-sync", "double-vote"),
    mute_to_some,
)  # fmt: skip
speak_late = by_kind(commit("late-words", "slow-leader"), resume_within_term)
be_absent = any_of(cut_off, pause_leader, crash_leader)
anything = any_of(
    nothing, show_and_crash, lie_about_batch, speak_late, be_absent, pause_follower, show_to_some
)

#: A disturbance for each successive leader; leaders after the last one are not disturbed.
SCRIPTS: tuple[tuple[Disturbance, ...], ...] = (
    (show_and_crash, lie_about_batch, speak_late),
    (show_and_crash, speak_late, lie_about_batch),
    (all_of(show_to_some, lie_about_batch), be_absent, resume_within_term),
    (cut_off, all_of(show_to_some, lie_about_batch), pause_leader),
    (show_and_crash, all_of(resume_within_term, pause_follower), show_and_crash),
    (anything, anything, anything, anything),
    (anything, anything, anything, anything),
)


def draw_leaders(draft: Draft) -> None:
    """Draw a script; in half of the draws the brokers that may be faulty lead first."""
    rng = draft.rng
    script = rng.choice(SCRIPTS)
    if rng.randrange(2):
        leaders = draft.brokers[: max(len(script), draft.f)]
        draft.corruptible = rng.sample(leaders, draft.f)
    at = rng.randrange(50, 400)
    for place, disturb in enumerate(script):
        length = LEADER_TIMEOUT_MS + rng.randrange(100, 400)
        disturb(draft, Term(draft.brokers[place % len(draft.brokers)], at, at + length))
        at += length
    draft.safety_ms = max(draft.safety_ms, at)
