"""Epochs that change more than brokers: f, retention, and a channel that is replaced.

They are part of `members` and, now and then, of other scenarios. All choices come from a random
generator of their own, so that everything else that a seed draws stays as it was.
"""

from __future__ import annotations

import random

from quorumcast.core.ids import NodeId
from quorumcast.core.quorum import minimum_brokers
from quorumcast.sim.cell.drawing.draft import Draft

#: Adversaries to which no epochs are added: in `none` nothing happens, `theft` changes keys in its
#: own way, and twins are two machines of which a driver would hand the manifest to one.
WITHOUT = ("none", "theft", "twin")
#: One scenario in so many of other adversaries has such epochs.
ONCE_IN = 8


def draw_epochs(draft: Draft) -> None:
    """Perhaps change f, change retention, or delete a channel and create it again.

    In between a log may have no channels.
    """
    rng = random.Random(f"epochs {draft.seed}")
    members = draft.adversary == "members"
    rotates = any(act.what in ("rotate", "twin", "roll", "cycle") for act in draft.acts)
    if draft.adversary in WITHOUT or rotates or (not members and rng.randrange(ONCE_IN)):
        return
    if members and rng.randrange(2):
        _draw_faults(draft, rng)
    if rng.randrange(2):
        _draw_retention(draft, rng)
    if len(draft.channels) > 1 and rng.randrange(2):
        _draw_replacement(draft, rng)
    lone = random.Random(f"lone channel {draft.seed}")
    if len(draft.channels) == 1 and draft.policy.total and lone.randrange(2):
        _draw_replacement(draft, lone)


def _draw_faults(draft: Draft, rng: random.Random) -> None:
    """Raise or lower f, after brokers were added and before brokers are removed, if need be.

    If f brokers lie and f is raised, one more lies as soon as the cell has the new f.
    """
    policy, f = draft.policy, draft.f
    if policy.chained:
        return  # chains are drawn from the first 3f+1 brokers, and these must stay
    members = _members_at_end(draft)
    at = max(act.at_ms for act in draft.acts if act.what in ("add", "remove")) + 1
    liars = [one for one in draft.corruptions if one.node in draft.brokers]
    if f > 1 and len({liar.node for liar in liars}) < f and rng.randrange(2):
        draft.act(at, "faults", amount=f - 1)
        return
    missing = minimum_brokers(policy.protection, f + 1, policy.broadcast) - len(members)
    added = len({act.node for act in draft.acts if act.what == "add"})
    for number in range(missing):
        newcomer = NodeId(f"broker-{len(draft.brokers) + added + number + 1}")
        draft.act(at + number, "add", newcomer)
    draft.newcomers = max(draft.newcomers, added + max(0, missing))
    honest = [name for name in draft.correct if name in members]
    late_liar = NodeId("")
    if liars and honest:
        late_liar = rng.choice(honest)
        draft.doomed.append((late_liar, liars[0].fault))
    at += max(0, missing)
    draft.act(at, "faults", late_liar, amount=f + 1)
    if not late_liar and rng.randrange(2):
        draft.act(at + rng.randrange(1, draft.safety_ms // 3), "faults", amount=f)


def _members_at_end(draft: Draft) -> list[NodeId]:
    """The brokers after all steps so far."""
    members = dict.fromkeys(draft.brokers)
    for act in draft.acts:
        if act.what == "add":
            members[act.node] = None
        elif act.what == "remove":
            members.pop(act.node, None)
    return list(members)


def _draw_retention(draft: Draft, rng: random.Random) -> None:
    """Change the number of retained publications a few times, while a reader is cut off."""
    least = draft.policy.least_retained
    present = draft.policy.limits.retained_publications
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(draft.safety_ms)
        amount = rng.choice((least, least + 4, 2 * least, present, 2 * present))
        draft.act(at, "retain", channel=rng.choice(draft.channels).name, amount=amount)
    if rng.randrange(2):
        at = rng.randrange(draft.safety_ms)
        draft.act(at, "partition", peers=(rng.choice(draft.subscribers),))
        draft.act(at + rng.randrange(20, draft.safety_ms), "heal")
    draft.act(draft.safety_ms, "read", draft.subscribers[-1], draft.channels[0].name)


def _draw_replacement(draft: Draft, rng: random.Random) -> None:
    """Delete the last channel and create it again, perhaps while f brokers are away."""
    if draft.resuming:
        return  # a resumed stream goes on where it was on the deleted channel
    name = draft.channels[-1].name
    deleted = [act.at_ms for act in draft.acts if act.what == "delete"]
    at = deleted[0] if deleted else rng.randrange(draft.safety_ms)
    if not deleted:
        draft.act(at, "delete", channel=name)
    draft.act(at + 1, "create", channel=name)
    away = [name for name in draft.corruptible if name not in draft.corrupted]
    begin, end = max(0, at - rng.randrange(30)), at + rng.randrange(100, 1500)
    how = rng.choice(("nothing", "pause", "cut"))
    if how == "cut" and away:
        draft.act(begin, "partition", peers=away)
        draft.act(end, "heal")
    if how == "pause" and not any(act.what == "pause" for act in draft.acts):
        for broker in away:
            draft.act(begin, "pause", broker)
            draft.act(end, "resume", broker)
