"""The adversaries of a cell by name, and the policies that withstand each."""

from __future__ import annotations

from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import CatalogueEntry, Role
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.aimed import AIMED

#: Adversaries that are not faults of single nodes: crashes, networks, conspiracies and the like.
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
    "lag": "nobody is faulty: brokers and clients stand still, or get little processor time",
    "rolling": "brokers restart without their memories, each once all have caught up",
    "members": "brokers are added, removed and replaced, amid crashes, cuts, pauses or f liars",
    "latecomers": "f brokers lie, and readers come at any time who want the past, or a part of it",
    "wiped": "f brokers lose their disks when the others have long forgotten the log they need",
    "isolation": "partitions and one-way cuts that outlast a leader's patience, or a whole stream",
    "lives": "publishers crash again and again while a subscriber is cut off",
    "retelling": "brokers restart one by one, and a publisher tells each of them another story",
    "leaders": "each leader in turn shows a batch to some and dies, lies about it, or is late",
    "theft": "a client's key is replaced, and whoever stole it calls with the old one",
    "several": "several of all that at once, with f brokers and any number of clients that lie",
}
#: Every name that `--adversary` takes.
ADVERSARIES = (*WORLD, *CATALOGUE, *AIMED)
#: Drawn only by name: what a seed draws without a name stays as it was, and faults about predicates
#: have no effect on channels without columns.
BY_NAME = ("lag", "never-reads", *(name for name, entry in CATALOGUE.items() if entry.of_rows))
#: Adversaries of total order alone.
TOTAL_WORLD = ("blackout", "pause", "wiped", "leaders")
#: Adversaries that need a long safety phase, because leaders or members change.
LONG = (*TOTAL_WORLD, "members", "isolation", "lag")
#: Adversaries under which brokers restart and stay correct, so that they need a journal.
JOURNALED = ("crash-recover", "blackout", "members", "retelling")
#: Adversaries under which correct brokers lose contents and recover them from others.
RETAINING = ("rolling", "members", "retelling")
#: Faults of brokers that help a lying publisher, without and with total order.
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


def entry_of(name: str) -> CatalogueEntry | None:
    """The entry of a fault or aimed attack."""
    return CATALOGUE.get(name) or AIMED.get(name)


def applicable(adversary: str, policy: Policy) -> bool:
    """Whether a policy claims to withstand this adversary."""
    entry = entry_of(adversary)
    if adversary in TOTAL_WORLD and not policy.total:
        return False
    # Brokers of a chain do not recover contents from one another.
    if adversary in ("rolling", "retelling") and policy.chained:
        return False
    # With total order, manifests are ordered as well: see "members".
    if adversary in ("rolling", "theft") and policy.total:
        return False
    if adversary == "never-reads" and policy.total:
        return False
    if entry is not None and entry.only_under and policy.like not in entry.only_under:
        return False
    if adversary in ("conspiracy", "retelling"):
        return not policy.trusts_publishers
    if entry is None:
        return not (policy.crash_only and adversary in ("twin", "amnesia", "wiped"))
    if entry.role is Role.BROKER:
        return entry.benign or not policy.crash_only
    if entry.role is Role.PUBLISHER:
        return not policy.trusts_publishers
    return True


def faults_of(role: Role, policy: Policy) -> list[str]:
    """The faults of a role that a policy claims to withstand."""
    faults = {**CATALOGUE, **AIMED}
    found = [n for n, e in faults.items() if e.role is role and applicable(n, policy)]
    return [name for name in found if name not in BY_NAME]
