"""Known-bad variants of total order: each mistake, its attack, and the properties that may break.

Plans here are timed by hand: every message takes 10 ms, a leader is replaced after about 600 ms
without progress, and `mute` loses all packets from one node to some others. Brokers 1 to 4 lead in
turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Effect, Persist, Send
from quorumcast.core.quorum import OrderQuorums, Quorums
from quorumcast.core.statements import StopStatement
from quorumcast.ordering import leader_change, offers
from quorumcast.ordering.amnesia import AmnesiaGuard
from quorumcast.ordering.checkpoints import CatchUp
from quorumcast.ordering.consensus import Consensus, Slot
from quorumcast.ordering.intake import Intake
from quorumcast.ordering.offers import Offers
from quorumcast.ordering.state import State
from quorumcast.sim.cell.cells import broker_names
from quorumcast.sim.cell.known_bad import ordering_attacks as attacks
from quorumcast.sim.cell.known_bad.plans import PUB1, PUB2, SUB1, SUB2, mount, order_plan
from quorumcast.sim.cell.scenario import ORDERS
from quorumcast.sim.kernel.known_bad import Patch, Variant
from quorumcast.sim.kernel.plan import Act, Corruption

B1, B2, B3, B4 = ALL = broker_names(4)


def _mute(at_ms: int, node: NodeId, *peers: NodeId) -> Act:
    return Act(at_ms, "mute", node, peers=peers)


def _submit(at_ms: int, publisher: NodeId, amount: int = 1) -> Act:
    return Act(at_ms, "submit", publisher, ORDERS, amount)


# ------------------------------------------------------------- the attacks

#: The first batch is accepted by brokers 2 and 3 alone; broker 2 denies it and leads next.
ACCEPTED_BY_TWO = (
    _submit(400, PUB1),
    _mute(435, B3, B1, B4, SUB2),
    _mute(465, B3, B2),
    _submit(1250, PUB2),
)
#: The first batch is accepted by brokers 1 to 3, decided by broker 3 alone, and late at broker 4.
ACCEPTED_BY_THREE = (
    _submit(400, PUB1),
    *(_mute(425, broker, B4) for broker in (B1, B2, B3)),
    _mute(425, B4, B1, B2, B3),
    _mute(425, B3, SUB2),
    Act(480, "heal"),
    _mute(480, B3, B1, B2, B4, SUB2),
    _submit(1250, PUB2),
)
#: Afterwards broker 4 alone decides the second leader's batch, and is cut off when broker 3 leads.
THEN_DECIDED_BY_ONE = (
    Act(1400, "heal"),
    _mute(1400, B4, B1, B2, B3),
    *(_mute(1400, broker, B4) for broker in (B1, B2, B3)),
)
#: Broker 4 misses so much that only a state transfer helps.
LEFT_BEHIND = (
    Act(300, "partition", peers=(B4,)),
    *(_submit(310 + 12 * n, PUB1 if n % 2 else PUB2) for n in range(60)),
    Act(1100, "heal"),
)

# ------------------------------------------------------------- the mistakes


_conclude = leader_change.__dict__["conclude"]
_load = State.__dict__["load"]
_listen = AmnesiaGuard.__dict__["listen"]
_on_open = Intake.__dict__["on_open"]
_on_state_head = CatchUp.__dict__["on_state_head"]


def _decide_early(self: Any, instance: int, slot: Slot) -> list[Effect]:
    """Decide at f+1 ACCEPTs, as FIT-Broker does."""
    effects: list[Effect] = self._maybe_accept(instance, slot)
    if not slot.decided:
        won = slot.accepts.leader(self._quorums.believe)
        if won is not None:
            self.decide(instance, won[1])
    return effects


def _say_before_disk(self: Any, instance: int, slot: Slot, word: Any) -> list[Effect]:
    """Send a vote before it is durable."""
    record = self._record(instance, slot)
    return [Send(self.peers, word), *self._count_own(slot, word), Persist(record)]


def _trust_one_state(self: Any, sender: NodeId, head: Any) -> Any:
    """Accept the first state that any broker offers."""
    true = self._quorums
    self._quorums = OrderQuorums(true.n, 0, true.byzantine)
    try:
        return _on_state_head(self, sender, head)
    finally:
        self._quorums = true


def _load_without_served(self: Any, image: bytes) -> Any:
    """Load the positions of a transferred state, but not the numbers served of each stream."""
    loaded = _load(self, image)
    self.served = {}
    return loaded


def _open_anew(self: Any, sender: NodeId, message: Any) -> Any:
    """Treat every stream that is opened as new."""
    state, stream = self._execution.state, message.stream
    for known in (state.served, state.chains):
        known.pop(stream, None)
    state._lines.get((stream.channel, stream.publisher), {}).pop(stream.line, None)
    return _on_open(self, sender, message)


def _conclude_freely(quorums: OrderQuorums, words: Sequence[StopStatement]) -> Any:
    """Conclude a leader change without regard to what was accepted before."""
    return _conclude(quorums, [replace(word, claims=()) for word in words])


def _accepted(place: int) -> Callable[..., bytes]:
    """The value accepted in the oldest (0) or newest (-1) regency, whether or not it is proven."""

    def value(quorums: Any, words: Any, claims: Sequence[Any], instance: int) -> bytes:
        accepted = sorted((c.regency, c.value) for c in claims if c is not None and c.value)
        return accepted[place][1] if accepted else b""

    return value


def _vote_at_once(self: Any) -> Any:
    """Vote again at once after a loss of memory."""
    heard = _listen(self)
    self._consensus.blind = 0
    return heard


ORDER_VARIANTS: tuple[Variant, ...] = (
    Variant(
        "order-quorum", "a batch is written and accepted by one broker too few",
        [Patch(OrderQuorums, "decide", property(lambda q: (q.n + q.f) // 2))],
        order_plan("total", mount(B1, attacks.SplitFirst, B3, B4),
                   acts=[_mute(395, B2, B3, B4, SUB2), _mute(395, B3, B2, SUB1),
                         _mute(395, B4, B2, SUB1), _submit(400, PUB1), _submit(440, PUB2)]),
        ("Total order",),
    ),
    Variant(
        "accept-quorum", "a batch is decided at f+1 ACCEPTs",
        [Patch(Consensus, "_progress", _decide_early)],
        order_plan("total", mount(B2, attacks.UndoFirst, B1, B4, SUB2), acts=ACCEPTED_BY_TWO),
        ("Total order",),
    ),
    Variant(
        "no-synchronisation", "a new leader proposes what it likes",
        [Patch(leader_change, "conclude", _conclude_freely)],
        order_plan("total", mount(B2, attacks.UndoFirst, B1, B4, SUB2), acts=ACCEPTED_BY_THREE),
        ("Total order", "Sound blame"),
    ),
    Variant(
        "older-regency", "what was accepted in the oldest regency is kept",
        [Patch(leader_change, "_value_of", _accepted(0))],
        order_plan("total", mount(B2, attacks.UndoFirst, B1, B4, SUB2),
                   acts=[*ACCEPTED_BY_TWO, *THEN_DECIDED_BY_ONE], calm_at_ms=4500),
        ("Total order", "Sound blame"),
    ),
    Variant(
        "invention-kept", "a value is kept although nobody wrote it",
        [Patch(leader_change, "_value_of", _accepted(-1))],
        order_plan("total", mount(B2, attacks.InventAccepted, B1, B4, SUB2),
                   acts=[*ACCEPTED_BY_THREE, Act(1400, "heal"), _mute(1400, B4, B3)],
                   calm_at_ms=4500),
        ("Total order", "Sound blame", "Totality"),
    ),
    Variant(
        "state-believed", "one broker's word is enough for a state",
        [Patch(CatchUp, "on_state_head", _trust_one_state)],
        order_plan("total", mount(B1, attacks.FalseTransfer), journal=True, acts=LEFT_BEHIND),
        ("Sound blame", "Total order"),
    ),
    Variant(
        "chunk-unverified", "chunks of a state are not compared with their digests",
        [Patch(CatchUp, "genuine", lambda self, chunk, digest: True)],
        order_plan("total", mount(B1, attacks.FalseTransfer, "chunks"), journal=True,
                   acts=LEFT_BEHIND),
        ("Sound blame", "Total order"),
    ),
    Variant(
        "served-lost", "a transferred state does not say who has been served",
        [Patch(State, "load", _load_without_served)],
        order_plan("total", mount(B1, attacks.ProposeAgain), acts=LEFT_BEHIND),
        ("Sound blame", "Total order"),
    ),
    Variant(
        "introduced-anew", "a publisher that goes on with a stream is taken for a new one",
        [Patch(Intake, "on_open", _open_anew)],
        order_plan("total", resuming=(PUB1,),
                   acts=[*(_submit(200 + 40 * n, PUB1) for n in range(6)), Act(600, "crash", PUB1),
                         Act(620, "restart", PUB1), _submit(900, PUB1)]),
        ("Uniqueness", "Total order", "FIFO"),
    ),
    Variant(
        "vote-before-disk", "votes leave before the disk has them",
        [Patch(Consensus, "_cast", _say_before_disk)],
        order_plan("total", journal=True, sync_ms=60,
                   acts=[_submit(200, PUB1), _submit(600, PUB1),
                         *(_mute(599, broker, SUB2) for broker in ALL),
                         *(Act(655, "crash", broker) for broker in ALL),
                         Act(656, "partition", peers=(PUB1, SUB1)), _submit(660, PUB2),
                         *(Act(670, "restart", broker) for broker in ALL)]),
        ("Journal",),
    ),
    Variant(
        "amnesia-votes", "a broker that forgot its votes votes again at once",
        [Patch(AmnesiaGuard, "listen", _vote_at_once)],
        order_plan("total-crash", brokers=3, doomed=((B2, "amnesia"),),
                   acts=[_submit(200, PUB1), Act(390, "partition", peers=(B3, SUB2, PUB2)),
                         _submit(400, PUB1), _mute(448, PUB1, B2), Act(450, "wipe", B2),
                         Act(455, "restart", B2),
                         Act(540, "partition", peers=(B1, SUB1, PUB1)), _submit(570, PUB2)],
                   calm_at_ms=4000),
        ("Total order",),
    ),
    Variant(
        "offer-unsigned", "an offer that another broker passes on need not be signed",
        [Patch(offers, "offer_holds", lambda keyring, offer: True)],
        order_plan("total", mount(B1, attacks.forge_offer),
                   acts=[_mute(395, PUB1, B2, B3, B4), _submit(400, PUB1)]),
        ("Authenticity",),
    ),
    Variant(
        "label-unchecked", "contents may be labelled as anybody's",
        [Patch(Offers, "flaw", lambda self, offer, bodies: None)],
        order_plan("total", Corruption(PUB2, "bad-label", 0, 100, ALL),
                   acts=[_submit(400, PUB2, 4)]),
        ("Authenticity", "Relevance"),
    ),
    Variant(
        "position-votes", "a subscriber believes f brokers about a position",
        [Patch(Quorums, "one_correct", property(lambda q: q.f))],
        order_plan("total", Corruption(B2, "alter", 0, 100, ("contents",)),
                   acts=[*(_mute(395, broker, SUB1) for broker in (B1, B3, B4)),
                         _submit(400, PUB1), _submit(430, PUB2)]),
        ("Authenticity", "Total order"),
    ),
)  # fmt: skip
