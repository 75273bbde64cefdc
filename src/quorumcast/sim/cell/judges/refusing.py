"""Refusal and suspicion: correct nodes find no fault with one another.

A machine that ignores a message says why (`Drop`), and one that blames a peer says what for
(`Suspect`). Correct nodes send one another nothing that is malformed, unsigned or forbidden. A word
to the contrary means that sender and receiver differ about the protocol, and then a quorum lacks a
voice although nobody lies.

Four things are no fault of the sender. An attacker on the wire may alter contents, which only
their digests protect. A broker may pass on what a lying publisher, or a liar before it in a chain,
said: it cannot verify MACs that are not for it. A node that came with an epoch, or went with one,
may be a stranger to those who go by another, and what it signed holds in its own epoch only. And
lateness is not a lie: a correct node may come as late as a silent one, so nobody is held to
suspicions that time alone gives rise to.
"""

from __future__ import annotations

from collections.abc import Iterator

from quorumcast.broadcast.messages import ChainRun
from quorumcast.cell.messages import Checkpoint, Vote
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Drop, DropReason, Effect, Receive, Suspect, Suspicion
from quorumcast.core.message import Message
from quorumcast.faults.cell.base import stream_of
from quorumcast.ordering.messages import Offer, Propose
from quorumcast.sim.cell.judges.facts import CellFacts

#: Reasons to ignore a message that tell of a fault; with the others it came too late or too early.
FLAWS = frozenset(
    (
        DropReason.NO_RIGHT,
        DropReason.WRONG_SENDER,
        DropReason.BAD_RUN,
        DropReason.BAD_BODY,
        DropReason.BAD_VOUCHER,
        DropReason.BAD_CHAIN,
        DropReason.BAD_SIGNATURE,
        DropReason.CONFLICT,
    )
)
#: Suspicions of nodes that did not do something in time.
OF_LATENESS = frozenset((Suspicion.SILENT, Suspicion.WITHHOLDS, Suspicion.BROKEN_CHAIN))


class NoRefusal:
    """A correct node finds no fault with what another correct node sent it."""

    name = "Refusal"
    watches: frozenset[type] = frozenset((Drop,))

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Effect) -> None:
        """A correct node is about to do this."""
        if not isinstance(effect, Drop) or effect.reason not in FLAWS:
            return
        correct, cause = facts.adversary.is_correct, facts.cause
        if not correct(effect.sender) or not isinstance(cause, Receive):
            return
        if _of_another_epoch(facts, effect, cause.message):
            return
        if _may_be_altered(facts) or not all(map(correct, _quoted(cause.message))):
            return
        what = type(cause.message).__name__
        facts.violate(
            self.name, f"{node} refuses a {what} of {effect.sender}: {effect.reason.value}"
        )

    def at_end(self, facts: CellFacts) -> None:
        """Nothing more."""


class Justified:
    """Of the nodes that a suspicion names, one has done something.

    It is reported in the end: where correct brokers really differ, the harm is to be named first.
    """

    name = "Justified"
    watches: frozenset[type] = frozenset((Suspect,))

    def __init__(self) -> None:
        self._first = ""

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Effect) -> None:
        """A correct node is about to do this."""
        if self._first or not isinstance(effect, Suspect) or effect.reason in OF_LATENESS:
            return
        if effect.reason is Suspicion.BAD_VOUCHER and len(facts.manifests) > 1:
            return
        named = (effect.node, *effect.among)
        if all(map(facts.adversary.is_correct, named)) and not _may_be_altered(facts):
            about = "" if effect.stream is None else f" on {effect.stream} {effect.number}"
            self._first = f"{node} suspects {effect.node} of {effect.reason.value}{about}"

    def at_end(self, facts: CellFacts) -> None:
        """Report the first one."""
        if self._first:
            facts.violate(self.name, self._first)


def _may_be_altered(facts: CellFacts) -> bool:
    """Whether an attacker on the wire may have altered the contents that a node has just got."""
    return facts.wire_tapped and isinstance(facts.cause, Receive) and bool(facts.cause.bodies)


def _of_another_epoch(facts: CellFacts, drop: Drop, message: Message) -> bool:
    """Whether sender and receiver may go by different epochs."""
    if drop.reason is DropReason.WRONG_SENDER:
        known = {manifest.broker(drop.sender) is None for manifest in facts.manifests.values()}
        return len(known) > 1
    bound = drop.reason in (DropReason.BAD_VOUCHER, DropReason.BAD_SIGNATURE)
    return len(facts.manifests) > 1 and (bound or isinstance(message, Checkpoint))


def _quoted(message: Message) -> Iterator[NodeId]:
    """Nodes whose words a message passes on."""
    stream = message.stream if isinstance(message, Offer) else stream_of(message)
    if stream is not None:
        yield stream.publisher
    if isinstance(message, ChainRun | Vote):
        yield from message.order
    elif isinstance(message, Propose):
        yield from (item.stream.publisher for item in message.batch)
