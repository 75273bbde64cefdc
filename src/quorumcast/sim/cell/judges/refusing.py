"""Refusal and suspicion: correct nodes neither refuse nor suspect one another.

If a correct node refuses (`Drop`) or suspects (`Suspect`) another one, the two differ about the
protocol, and a quorum may lack a vote although nobody lies. These cases are not the sender's fault:

- An attacker on the wire altered contents, which only their digests protect.
- A broker forwarded a lie of the publisher, or of a node before it on a chain, since it cannot
  verify MACs that are meant for others.
- The two are in different epochs, and do not know each other or the epoch of a signature.
- A correct node is slow: suspicions that rest on time alone are allowed if anything but slowness
  happens in the run (`CellFacts.is_honest`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

from quorumcast.broadcast.messages import ChainRun
from quorumcast.cell.messages import Checkpoint, Vote
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Drop, DropReason, Receive, Suspect, Suspicion
from quorumcast.core.message import Message
from quorumcast.faults.cell.base import stream_of
from quorumcast.ordering.messages import Offer, Propose
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.kernel.judging import EffectChecker

#: Drop reasons that imply a faulty sender; the others mean that a message came too late or early.
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
#: Reasons for which contents that were altered on the wire are refused or their sender suspected.
#: All others rest on the message, which a MAC covers, or on contents that match their digests.
ALTERED = frozenset((DropReason.BAD_BODY, Suspicion.BAD_BODY))
#: Suspicions that rest on time alone.
OF_LATENESS = frozenset((Suspicion.SILENT, Suspicion.WITHHOLDS, Suspicion.BROKEN_CHAIN))


class NoRefusal(EffectChecker):
    """A correct node does not refuse a message from another correct node."""

    name = "Refusal"
    watches = frozenset((Drop,))

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Drop) -> None:
        correct, cause = facts.adversary.is_correct, facts.cause
        if effect.reason not in FLAWS or not correct(effect.sender):
            return
        if not isinstance(cause, Receive):
            return
        if _of_another_epoch(facts, node, effect, cause.message):
            return
        if not all(map(correct, _quoted(cause.message))):
            return
        if _may_be_altered(facts, effect.reason, node, (effect.sender,)):
            return
        what = type(cause.message).__name__
        facts.violate(
            self.name, f"{node} refuses a {what} of {effect.sender}: {effect.reason.value}"
        )


class Justified(EffectChecker):
    """At least one of the nodes that a suspicion names is faulty.

    A violation is reported at the end of the run, after violations of the properties that matter
    to applications.
    """

    name = "Justified"
    watches = frozenset((Suspect,))

    def __init__(self) -> None:
        self._first = ""

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Suspect) -> None:
        if self._first or (effect.reason in OF_LATENESS and not facts.is_honest):
            return
        if effect.reason is Suspicion.BAD_VOUCHER and len(facts.manifests_of(node)) > 1:
            return
        named = (effect.node, *effect.among)
        may_be_altered = _may_be_altered(facts, effect.reason, node, named)
        if all(map(facts.adversary.is_correct, named)) and not may_be_altered:
            about = "" if effect.stream is None else f" on {effect.stream} {effect.number}"
            self._first = f"{node} suspects {effect.node} of {effect.reason.value}{about}"

    def at_end(self, facts: CellFacts) -> None:
        """Report the first unjustified suspicion."""
        if self._first:
            facts.violate(self.name, self._first)


def _may_be_altered(
    facts: CellFacts, reason: enum.Enum, node: NodeId, senders: Iterable[NodeId]
) -> bool:
    """Whether the reason may be contents that were altered on the way from one of the senders.

    They may have come earlier: a subscriber keeps votes until others have named their stream.
    """
    return reason in ALTERED and any((sender, node) in facts.altered for sender in senders)


def _of_another_epoch(facts: CellFacts, node: NodeId, drop: Drop, message: Message) -> bool:
    """Whether sender and receiver may be in different epochs."""
    epochs = facts.manifests_of(node)
    if drop.reason is DropReason.WRONG_SENDER:
        known = {epoch.broker(drop.sender) is None for epoch in epochs}
        return len(known) > 1
    bound = drop.reason in (DropReason.BAD_VOUCHER, DropReason.BAD_SIGNATURE)
    return len(epochs) > 1 and (bound or isinstance(message, Checkpoint))


def _quoted(message: Message) -> Iterator[NodeId]:
    """The nodes whose claims a message forwards."""
    stream = message.stream if isinstance(message, Offer) else stream_of(message)
    if stream is not None:
        yield stream.publisher
    if isinstance(message, ChainRun | Vote):
        yield from message.order
    elif isinstance(message, Propose):
        yield from (item.stream.publisher for item in message.batch)
