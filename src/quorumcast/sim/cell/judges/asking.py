"""Questions: a request to a correct broker that holds the contents is answered.

A node that lacks contents asks one peer after the other and repeats its requests. Once the network
is calm, a few requests to brokers that hold the contents must be enough. A node that goes on asking
shows that brokers reject its request, or that it rejects their answer.
"""

from __future__ import annotations

from quorumcast.broadcast.messages import Pull
from quorumcast.cell.messages import Regain
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Effect, Send
from quorumcast.sim.cell.judges.facts import CellFacts

#: Largest number of equal requests to brokers that hold the contents; slow links cause a few.
MAX_ASKED = 12


class Questions:
    """No node repeats one request for ever to correct brokers that hold the contents."""

    name = "Questions"
    watches: frozenset[type] = frozenset((Pull, Regain))

    def __init__(self) -> None:
        #: Number of times each node sent each request to brokers that hold the contents.
        self._asked: dict[tuple[NodeId, Pull | Regain], int] = {}

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Effect) -> None:
        """Count a request of a correct node."""
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
        # A request for digests goes to all brokers at once and counts once.
        asked = self._asked[node, message] = self._asked.get((node, message), 0) + 1
        if asked > MAX_ASKED:
            what = f"{message.stream} {message.first}"
            facts.violate(self.name, f"{node} asks for {what} for ever, which {holders[0]} holds")

    def at_end(self, facts: CellFacts) -> None:
        """Nothing more."""
