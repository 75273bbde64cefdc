"""Questions: whoever asks a correct broker for what it holds gets it.

A node that lacks contents asks one peer after the other, again and again. Once the network is calm,
a few questions to brokers that hold the answer must be enough. Otherwise the question is one that
brokers do not understand, or the answer one that the node does not take, and it asks for ever.
"""

from __future__ import annotations

from quorumcast.broadcast.messages import Pull
from quorumcast.cell.messages import Regain
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Effect, Send
from quorumcast.sim.cell.judges.facts import CellFacts

#: So often the same is asked of brokers that hold the answer: links may be slow.
MOST_ASKED = 12


class Questions:
    """The same question is not asked for ever of correct brokers that hold the answer."""

    name = "Questions"
    watches: frozenset[type] = frozenset((Pull, Regain))

    def __init__(self) -> None:
        #: How often each node asked each question of brokers that hold the answer.
        self._asked: dict[tuple[NodeId, Pull | Regain], int] = {}

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Effect) -> None:
        """A correct node is about to do this."""
        if not facts.calm or not isinstance(effect, Send):
            return
        message = effect.message
        if not isinstance(message, Pull | Regain):
            return
        holders = [
            peer
            for peer in effect.to
            if facts.adversary.is_correct(peer) and facts.holds(peer, message.stream, message.first)
        ]
        if not holders:
            return
        # Digests are asked of all at once, which is one question.
        asked = self._asked[node, message] = self._asked.get((node, message), 0) + 1
        if asked > MOST_ASKED:
            what = f"{message.stream} {message.first}"
            facts.violate(self.name, f"{node} asks for {what} for ever, which {holders[0]} holds")

    def at_end(self, facts: CellFacts) -> None:
        """Nothing more."""
