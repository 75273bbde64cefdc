"""The trace of a cell: the parameters of a run, and the hops of publications."""

from __future__ import annotations

from typing import Any

import msgspec

from quorumcast.broadcast.application import Deliver
from quorumcast.broadcast.messages import ChainRun, Matches, Publish
from quorumcast.cell.messages import Vote
from quorumcast.core.ids import DIGEST_SIZE, NodeId, holder
from quorumcast.ordering.messages import Offer
from quorumcast.traces.recorder import Notes, Recorder


class CellParameters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parameters of a run, the most important first; None where seeds draw them."""

    policy: str
    brokers: int | None = None
    alpha: int | None = None
    #: The upper end of an adaptive α; 0 for a fixed α.
    alpha_max: int = 0
    publishers: int | None = None
    #: Events per publication, and bytes per event; 0: they differ.
    batch: int | None = None
    rate: float = 0.0
    f: int | None = None
    subscribers: int | None = None
    channels: int | None = None
    size: int | None = None
    durable: bool = False
    tls: bool = False
    #: Delays that were put into the links, as people read them.
    weather: str = ""
    #: The workload that was replayed, by name.
    workload: str = ""
    digest: str = ""


def _note_run(recorder: Recorder, me: NodeId, send: Any) -> None:
    """Note that a run of publications, or a vote for one, is sent to peers."""
    message: Publish | Offer | ChainRun | Vote = send.message
    if isinstance(message, Vote):
        kind = "forwarded"
    else:
        # A resumed stream belongs to all seats of its publisher.
        own = message.stream.publisher == me or message.stream.publisher == holder(me)
        kind = "published" if own else "passed_on"
    order = message.order if isinstance(message, ChainRun | Vote) else ()
    place = order.index(me) + 1 if me in order else 0
    count = len(message.digests) // DIGEST_SIZE
    for peer in send.to:
        recorder.note(kind, message.stream, message.first, count, peer, place=place)


def _note_results(recorder: Recorder, me: NodeId, send: Any) -> None:
    """Note that publications, or rows of them, are vouched for; not that nothing matches."""
    message: Matches = send.message
    for first, count in _stretches(message.places):
        for peer in send.to:
            recorder.note("forwarded", message.stream, message.first + first, count, peer)


def _stretches(places: tuple[int, ...]) -> list[tuple[int, int]]:
    """Places that ascend as (first, count)."""
    found: list[tuple[int, int]] = []
    for place in places:
        if found and sum(found[-1]) == place:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((place, 1))
    return found


def _note_acceptance(recorder: Recorder, me: NodeId, deliver: Deliver) -> None:
    recorder.note(
        "accepted",
        deliver.stream,
        deliver.number,
        1,
        ",".join(deliver.votes),
        by_history=deliver.by_history,
        size=len(deliver.body),
    )


#: The number of hops is not noted: it follows from a channel's policy, which no message names.
CELL_NOTES: Notes = {
    **dict.fromkeys((Publish, Offer, ChainRun, Vote), _note_run),
    Matches: _note_results,
    Deliver: _note_acceptance,
}
