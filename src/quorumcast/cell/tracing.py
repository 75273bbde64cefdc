"""What a trace of a cell notes: publications that are sent, passed on, voted for and accepted."""

from __future__ import annotations

from typing import Any

from quorumcast.broadcast.application import Deliver
from quorumcast.broadcast.messages import ChainRun, Publish
from quorumcast.cell.messages import Vote
from quorumcast.core.ids import DIGEST_SIZE, NodeId, holder
from quorumcast.ordering.messages import Offer
from quorumcast.traces.notes import Notes, Recorder


def _note_run(recorder: Recorder, me: NodeId, send: Any) -> None:
    """A run of publications, or a vote for one, goes to each of these peers."""
    message: Publish | Offer | ChainRun | Vote = send.message
    if isinstance(message, Vote):
        kind = "forwarded"
    else:
        # A stream that is resumed belongs to all seats of its publisher.
        own = message.stream.publisher in (me, holder(me))
        kind = "published" if own else "passed_on"
    order = message.order if isinstance(message, ChainRun | Vote) else ()
    place = order.index(me) + 1 if me in order else 0
    count = len(message.digests) // DIGEST_SIZE
    for peer in send.to:
        recorder.note(kind, message.stream, message.first, count, peer, place=place)


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


#: Hops are not noted: they follow from a channel's policy, which no message names.
CELL_NOTES: Notes = {
    **dict.fromkeys((Publish, Offer, ChainRun, Vote), _note_run),
    Deliver: _note_acceptance,
}
