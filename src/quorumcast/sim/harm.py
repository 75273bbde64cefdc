"""What can go wrong in a run beside the faults of the catalogue, by name."""

from __future__ import annotations

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
    "rolling": "brokers restart without their memories, each once the one before has caught up",
    "members": "brokers are added, removed and replaced, amid crashes, cuts, pauses or f liars",
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
