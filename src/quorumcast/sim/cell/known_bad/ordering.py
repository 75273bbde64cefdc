"""Known-bad variants of total order: each mistake, its attack, and the property that must break.

Plans here are timed by hand: every message takes 10 ms, leaders are given up after about 600, and
`mute` loses what one node says to some others. Brokers 1 to 4 lead in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Effect, Persist, Send
from quorumcast.core.quorum import OrderQuorums, Quorums
from quorumcast.core.statements import StopStatement
from quorumcast.manifest.policy import Policy
from quorumcast.ordering import offers, regency, succession
from quorumcast.ordering.catchup import CatchUp
from quorumcast.ordering.caution import Caution
from quorumcast.ordering.consensus import Consensus, Slot
from quorumcast.ordering.intake import Intake
from quorumcast.ordering.offers import Offers
from quorumcast.ordering.regency import Conclusion
from quorumcast.ordering.sequencer import Sequencer
from quorumcast.ordering.state import State
from quorumcast.sim.cell.cells import PUBLISHERS, SUBSCRIBERS, broker_names, channel_entry
from quorumcast.sim.cell.known_bad import ordering_attacks
from quorumcast.sim.cell.known_bad.attacks import attack
from quorumcast.sim.cell.plan import CellPlan, small_limits
from quorumcast.sim.cell.scenario import ORDERS
from quorumcast.sim.kernel.known_bad import Patch, Variant
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Corruption

B1, B2, B3, B4 = ALL = broker_names(4)
PUB1, PUB2 = PUBLISHERS[:2]
SUB1, SUB2 = SUBSCRIBERS[:2]

CLOCKWORK = Weather(latency_ms=10, jitter_ms=0)


def siege(
    policy: str,
    *corruptions: Corruption,
    acts: Sequence[Act] = (),
    brokers: int = 4,
    weather: Weather = CLOCKWORK,
    sync_ms: int = 2,
    journal: bool = False,
    calm_at_ms: int = 1800,
    doomed: tuple[tuple[NodeId, str], ...] = (),
    resuming: tuple[NodeId, ...] = (),
) -> Callable[[int], CellPlan]:
    """Two publishers, two subscribers and one ordered channel; acts say the rest."""
    rules = Policy.named(policy, journal=journal, limits=small_limits())
    joins = [Act(5, "join", sub, ORDERS) for sub in (SUB1, SUB2)]

    def plan(seed: int) -> CellPlan:
        return CellPlan(
            seed=f"order {seed}",
            policy=rules,
            brokers=brokers,
            f=1,
            weather=weather,
            publishers=(PUB1, PUB2),
            subscribers=(SUB1, SUB2),
            channels=(channel_entry(ORDERS, rules),),
            acts=tuple(sorted([*joins, *acts], key=lambda act: act.at_ms)),
            corruptions=corruptions,
            doomed=doomed,
            calm_at_ms=calm_at_ms,
            patience_ms=8000,
            sync_ms=sync_ms,
            adversary="siege",
            resuming=resuming,
        )

    return plan


def _liar(node: NodeId, kind: Any, *victims: str) -> Corruption:
    return Corruption(node, kind.__name__, 0, 100, victims, "", attack(kind))


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
#: The first batch is accepted by brokers 1, 2 and 3, decided by 3 alone; 4 hears of it late.
ACCEPTED_BY_THREE = (
    _submit(400, PUB1),
    *(_mute(425, broker, B4) for broker in (B1, B2, B3)),
    _mute(425, B4, B1, B2, B3),
    _mute(425, B3, SUB2),
    Act(480, "heal"),
    _mute(480, B3, B1, B2, B4, SUB2),
    _submit(1250, PUB2),
)
#: Afterwards broker 4 alone decides the second leader's batch, and is cut off when 3 leads.
AND_THEN = (
    Act(1400, "heal"),
    _mute(1400, B4, B1, B2, B3),
    *(_mute(1400, broker, B4) for broker in (B1, B2, B3)),
)
#: One broker misses so much that only a state helps.
LEFT_BEHIND = (
    Act(300, "partition", peers=(B4,)),
    *(_submit(310 + 12 * n, PUB1 if n % 2 else PUB2) for n in range(60)),
    Act(1100, "heal"),
)

# ------------------------------------------------------------- the mistakes


class Hasty(Consensus):
    """Decides at f+1 ACCEPTs, as FIT-Broker does."""

    __slots__ = ()

    def _progress(self, instance: int, slot: Slot) -> list[Effect]:
        effects = self._maybe_accept(instance, slot)
        if not slot.decided:
            won = slot.accepts.leader(self._quorums.believe)
            if won is not None:
                self.decide(instance, won[1])
        return effects


class Rash(Consensus):
    """Votes before its disk knows."""

    __slots__ = ()

    def _say(self, instance: int, slot: Slot, word: Any) -> list[Effect]:
        record = self._record(instance, slot)
        return [Send(self.peers, word), *self._said(slot, word), Persist(record)]


class Credulous(CatchUp):
    """Takes the first state that anybody offers."""

    __slots__ = ()

    def on_state_head(self, sender: NodeId, head: Any) -> list[Effect]:
        believing = OrderQuorums(self._quorums.n, 0, self._quorums.byzantine)
        honest, self._quorums = self._quorums, believing
        try:
            return super().on_state_head(sender, head)
        finally:
            self._quorums = honest


class Careless(CatchUp):
    """Does not compare chunks with their digests."""

    __slots__ = ()

    def genuine(self, chunk: bytes, digest: bytes) -> bool:
        return True


class Forgetful(State):
    """Takes over the positions of another state and not who has been served."""

    __slots__ = ()

    def load(self, image: bytes) -> bool:
        loaded = super().load(image)
        self.served = {}
        return loaded


def _open_anew(self: Any, sender: NodeId, message: Any) -> list[Effect]:
    """Whoever introduces itself is new."""
    state, stream = self._execution.state, message.stream
    for known in (state.served, state.chains):
        known.pop(stream, None)
    state._lines.get((stream.channel, stream.publisher), {}).pop(stream.line, None)
    result: list[Effect] = _on_open(self, sender, message)
    return result


_on_open = Intake.__dict__["on_open"]
_conclude = regency.__dict__["conclude"]
_listen = Caution.__dict__["listen"]


def _conclude_freely(quorums: OrderQuorums, words: Sequence[StopStatement]) -> Conclusion | None:
    """A leader that owes nothing to anybody."""
    bare = [replace(word, claims=()) for word in words]
    result: Conclusion | None = _conclude(quorums, bare)
    return result


def _oldest(quorums: Any, words: Any, claims: Sequence[Any], instance: int) -> bytes | None:
    """The value that was accepted first, whatever was accepted since."""
    accepted = sorted((c.regency, c.value) for c in claims if c is not None and c.value)
    return accepted[0][1] if accepted else b""


def _unproven(quorums: Any, words: Any, claims: Sequence[Any], instance: int) -> bytes | None:
    """The value that was accepted last, if anybody says so."""
    accepted = sorted((c.regency, c.value) for c in claims if c is not None and c.value)
    return accepted[-1][1] if accepted else b""


def _listen_to_nobody(self: Any) -> bool:
    heard: bool = _listen(self)
    self._consensus.blind = 0
    return heard


def _variant(
    name: str,
    mistake: str,
    patches: Sequence[Patch],
    plan: Callable[[int], CellPlan],
    *caught_by: str,
) -> Variant:
    return Variant(
        name=name, mistake=mistake, patches=tuple(patches), attack=plan, caught_by=caught_by
    )


ORDER_VARIANTS: tuple[Variant, ...] = (
    _variant(
        "order-quorum", "a batch is written and accepted by one broker too few",
        [Patch(OrderQuorums, "decide", property(lambda q: (q.n + q.f) // 2))],
        siege("total", _liar(B1, ordering_attacks.SplitFirst, B3, B4),
              acts=[_mute(395, B2, B3, B4, SUB2), _mute(395, B3, B2, SUB1),
                    _mute(395, B4, B2, SUB1), _submit(400, PUB1), _submit(440, PUB2)]),
        "Total order",
    ),
    _variant(
        "accept-quorum", "a batch is decided at f+1 ACCEPTs",
        [Patch(Sequencer, "consensus", Hasty)],
        siege("total", _liar(B2, ordering_attacks.Undo, B1, B4, SUB2), acts=ACCEPTED_BY_TWO),
        "Total order",
    ),
    _variant(
        "no-synchronisation", "a new leader proposes what it likes",
        [Patch(succession, "conclude", _conclude_freely)],
        siege("total", _liar(B2, ordering_attacks.Undo, B1, B4, SUB2), acts=ACCEPTED_BY_THREE),
        "Total order", "Sound blame",
    ),
    _variant(
        "older-regency", "what was accepted in the oldest regency is kept",
        [Patch(regency, "_value_of", _oldest)],
        siege("total", _liar(B2, ordering_attacks.Undo, B1, B4, SUB2),
              acts=[*ACCEPTED_BY_TWO, *AND_THEN], calm_at_ms=4500),
        "Total order", "Sound blame",
    ),
    _variant(
        "invention-kept", "a value is kept although nobody wrote it",
        [Patch(regency, "_value_of", _unproven)],
        siege("total", _liar(B2, ordering_attacks.Invent, B1, B4, SUB2),
              acts=[*ACCEPTED_BY_THREE, Act(1400, "heal"), _mute(1400, B4, B3)],
              calm_at_ms=4500),
        "Total order", "Sound blame", "Totality",
    ),
    _variant(
        "state-believed", "one broker's word is enough for a state",
        [Patch(Sequencer, "catching_up", Credulous)],
        siege("total", _liar(B1, ordering_attacks.FalseTransfer), journal=True, acts=LEFT_BEHIND),
        "Sound blame", "Total order",
    ),
    _variant(
        "chunk-unverified", "chunks of a state are not compared with their digests",
        [Patch(Sequencer, "catching_up", Careless)],
        siege("total", _liar(B1, ordering_attacks.FalseTransfer, "chunks"), journal=True,
              acts=LEFT_BEHIND),
        "Sound blame", "Total order",
    ),
    _variant(
        "served-lost", "a transferred state does not say who has been served",
        [Patch(Sequencer, "state", Forgetful)],
        siege("total", _liar(B1, ordering_attacks.ProposeAgain), acts=LEFT_BEHIND),
        "Sound blame", "Total order",
    ),
    _variant(
        "introduced-anew", "a publisher that goes on with a stream is taken for a new one",
        [Patch(Intake, "on_open", _open_anew)],
        siege("total", resuming=(PUB1,),
              acts=[*(_submit(200 + 40 * n, PUB1) for n in range(6)), Act(600, "crash", PUB1),
                    Act(620, "restart", PUB1), _submit(900, PUB1)]),
        "Uniqueness", "Total order", "FIFO",
    ),
    _variant(
        "vote-before-disk", "votes leave before the disk has them",
        [Patch(Sequencer, "consensus", Rash)],
        siege("total", journal=True, sync_ms=60,
              acts=[_submit(200, PUB1), _submit(600, PUB1),
                    *(_mute(599, broker, SUB2) for broker in ALL),
                    *(Act(655, "crash", broker) for broker in ALL),
                    Act(656, "partition", peers=(PUB1, SUB1)), _submit(660, PUB2),
                    *(Act(670, "restart", broker) for broker in ALL)]),
        "Journal",
    ),
    _variant(
        "amnesia-votes", "a broker that forgot its votes votes again at once",
        [Patch(Caution, "listen", _listen_to_nobody)],
        siege("total-crash", brokers=3, doomed=((B2, "amnesia"),),
              acts=[_submit(200, PUB1), Act(390, "partition", peers=(B3, SUB2, PUB2)),
                    _submit(400, PUB1), _mute(448, PUB1, B2), Act(450, "wipe", B2),
                    Act(455, "restart", B2),
                    Act(540, "partition", peers=(B1, SUB1, PUB1)), _submit(570, PUB2)],
              calm_at_ms=2000),
        "Total order",
    ),
    _variant(
        "offer-unsigned", "an offer that another broker passes on need not be signed",
        [Patch(offers, "offer_holds", lambda keyring, offer: True)],
        siege("total", _liar(B1, ordering_attacks.ForgeOffer),
              acts=[_mute(395, PUB1, B2, B3, B4), _submit(400, PUB1)]),
        "Authenticity",
    ),
    _variant(
        "label-unchecked", "contents may be labelled as anybody's",
        [Patch(Offers, "flaw", lambda self, offer, bodies: None)],
        siege("total", Corruption(PUB2, "bad-label", 0, 100, ALL), acts=[_submit(400, PUB2, 4)]),
        "Authenticity", "Relevance",
    ),
    _variant(
        "position-votes", "a subscriber believes f brokers about a position",
        [Patch(Quorums, "one_correct", property(lambda q: q.f))],
        siege("total", Corruption(B2, "alter", 0, 100, ("contents",)),
              acts=[*(_mute(395, broker, SUB1) for broker in (B1, B3, B4)),
                    _submit(400, PUB1), _submit(430, PUB2)]),
        "Authenticity", "Total order",
    ),
)  # fmt: skip
