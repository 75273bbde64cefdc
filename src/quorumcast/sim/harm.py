"""What can go wrong in a run beside the faults of the catalogue, by name."""

from __future__ import annotations

from quorumcast.faults.catalogue import CATALOGUE, TOTAL
from quorumcast.faults.contract import Role

#: What the world does to nodes and links, beside the faults of the catalogue.
WORLD = {
    "none": "nothing: only the weather",
    "crash": "f brokers stop for good",
    "crash-recover": "brokers stop and come back with their journals, f at a time",
    "amnesia": "f brokers stop and come back without their disks",
    "twin": "f brokers run as two honest copies with one key",
    "partition": "the network falls apart and heals, again and again",
    "disconnect": "links break, again and again",
    "wire": "an attacker on the wire corrupts, repeats and replays packets",
    "conspiracy": "a publisher tells brokers different things, and f brokers are in the plot",
    "restarting-clients": "publishers and subscribers crash and come back",
    "blackout": "every broker is killed at once and comes back with its disk, again and again",
    "pause": "brokers, also more than f, stand still for a while and then do everything at once",
    "rolling": "brokers restart without their memories, each once all have caught up",
    "members": "brokers are added, removed and replaced, amid crashes, cuts, pauses or f liars",
    "latecomers": "f brokers lie, and readers come at any time who want the past, or a part of it",
    "wiped": "f brokers lose their disks when the others have long forgotten the log they need",
}
#: Adversaries of total order alone: they take their time, for leaders change by the second.
TOTAL_WORLD = ("blackout", "pause", "wiped")
#: Brokers restart in these and are still correct.
JOURNALED = ("crash-recover", "blackout", "members")
#: What brokers do that help a lying publisher, and one that lies about what is to be ordered.
ACCOMPLICES = ("drop", "alter", "equivocate", "withhold-bodies", "lie-acks", "silent")
ORDERING_ACCOMPLICES = (
    "equivocating-leader",
    "unfetchable-leader",
    "double-vote",
    "withhold-offers",
    "false-stop-data",
    "lie-in-ordering",
    "silent",
)


def applicable(adversary: str, policy: str) -> bool:
    """Whether a policy is meant to withstand this adversary at all."""
    entry = CATALOGUE.get(adversary)
    crash = policy in ("direct-crash", "total-crash")
    trusting = policy in ("direct", "direct-crash", "total-crash")
    if adversary in TOTAL_WORLD and policy not in TOTAL:
        return False
    if adversary == "rolling" and (policy in TOTAL or policy.startswith("chain")):
        return False
    if entry is not None and entry.only_under and policy not in entry.only_under:
        return False
    if adversary == "conspiracy":
        return not trusting
    if entry is None:
        return not (crash and adversary in ("twin", "amnesia", "wiped"))
    if entry.role is Role.BROKER:
        return entry.benign or not crash
    if entry.role is Role.PUBLISHER:
        # Direct channels trust their publishers.
        return not trusting
    return True
