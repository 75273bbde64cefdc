"""The known-bad variants: each mistake, its attack, and the property that must be seen broken.

Read one as: "if production code did this, this plan would break that promise". Quorums one too
small, MACs that are not checked or cover too little, doubles that are not noticed, histories and
bodies taken on trust, promises made before they are on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quorumcast.broadcast import acceptance, history
from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.broadcast.authenticated import Relay
from quorumcast.broadcast.bracha import Bracha
from quorumcast.broadcast.chain import Chain
from quorumcast.broadcast.history import History
from quorumcast.broadcast.ledger import AppendResult
from quorumcast.broadcast.messages import Echo
from quorumcast.broadcast.outlet import FanOut
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.subscribing import receipts
from quorumcast.cell.subscribing.archive import Archive
from quorumcast.cell.subscribing.reports import Reports
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Persist, Send
from quorumcast.core.quorum import Quorums
from quorumcast.core.tally import Ballot, Tally
from quorumcast.crypto.identity import derive
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.mac import chain_bytes
from quorumcast.crypto.session import Family, Session
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.cells import (
    PUBLISHERS,
    SUBSCRIBERS,
    broker_names,
    channel_entry,
    identity_of,
)
from quorumcast.sim.cell.known_bad import attacks
from quorumcast.sim.cell.known_bad.attacks import attack
from quorumcast.sim.cell.known_bad.members import MEMBER_VARIANTS
from quorumcast.sim.cell.known_bad.ordering import ORDER_VARIANTS
from quorumcast.sim.cell.known_bad.recovery import RECOVERY_VARIANTS
from quorumcast.sim.cell.plan import CellPlan, small_limits
from quorumcast.sim.cell.scenario import ORDERS, QUOTES
from quorumcast.sim.kernel import network
from quorumcast.sim.kernel.known_bad import Patch, Variant
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Corruption

B1, B2, B3, B4, B5, B6 = broker_names(6)
PUB, OWNER = PUBLISHERS[:2]
SUB1, SUB2 = SUBSCRIBERS[:2]
PLOT = "plot"

CALM = Weather(latency_ms=1, jitter_ms=3)


def siege(
    policy: str,
    *corruptions: Corruption,
    acts: Sequence[Act] = (),
    brokers: int = 4,
    publications: int = 12,
    weather: Weather = CALM,
    sync_ms: int = 2,
    journal: bool = False,
    publishers: tuple[NodeId, ...] = PUBLISHERS[:1],
) -> Callable[[int], CellPlan]:
    """A plan with one busy publisher and two subscribers; seeds differ in their draws only."""
    rules = Policy.named(policy, alpha=4, journal=journal, limits=small_limits())
    channels = (channel_entry(ORDERS, rules), channel_entry(QUOTES, rules))
    work = [Act(5, "join", sub, channel) for sub in (SUB1, SUB2) for channel in (ORDERS, QUOTES)]
    work += [Act(60 + 6 * n, "submit", PUB, ORDERS, 1) for n in range(publications)]

    def plan(seed: int) -> CellPlan:
        return CellPlan(
            seed=f"siege {seed}",
            policy=rules,
            brokers=brokers,
            f=1,
            weather=weather,
            publishers=publishers,
            subscribers=(SUB1, SUB2),
            channels=channels,
            acts=tuple(sorted([*work, *acts], key=lambda act: act.at_ms)),
            corruptions=corruptions,
            calm_at_ms=350,
            patience_ms=2500,
            sync_ms=sync_ms,
            adversary="siege",
        )

    return plan


def _liar(node: Any, kind: Any, *victims: str) -> Corruption:
    return Corruption(node, kind.__name__, 0, 100, victims, PLOT, attack(kind))


#: The publisher tells brokers 3 and 4 something else, broker 2 helps it with `readers`.
def _conspiracy(*readers: str) -> tuple[Corruption, Corruption]:
    return (
        Corruption(PUB, "equivocating-publisher", 0, 100, (B3, B4), PLOT),
        Corruption(B2, "two-faced", 0, 100, (B3, B4, *readers), PLOT),
    )


SPLIT = _conspiracy(SUB2)
AWAY = (Act(50, "partition", peers=(SUB2,)), Act(250, "heal"))


# ------------------------------------------------------------- the mistakes


def _covered(**forgotten: Any) -> Callable[..., bytes]:
    """What a chain MAC covers, with some of it forgotten."""

    def covered(
        self: Keyring, author: Any, reader: Any, stream: Any, first: int, digests: bytes, order: Any
    ) -> bytes:
        if "channel" in forgotten:
            stream = type(stream)("", stream.publisher, stream.incarnation, stream.lane)
        return chain_bytes(
            self.instance,
            self.epoch,
            author,
            reader,
            stream,
            forgotten.get("first", first),
            forgotten.get("digests", digests),
            order,
        )

    return covered


def _undirected(
    secret: bytes, factory: Any, hello: Any, nonce: bytes, family: Family, *, caller: bool
) -> Session:
    key = factory(derive(secret, b"quorumcast session" + hello.nonce + nonce))
    return Session(key, key, family)


def _count_words(self: Any, member: Any, value: Any) -> Ballot:
    self._votes[member] = value
    self._counts[value] = self._counts.get(value, 0) + 1
    return Ballot.COUNTED


_take = Relay.__dict__["_take"]
_vote = Acceptor.__dict__["vote"]
_must_vouch = Chain.__dict__["_must_vouch"]
_vouch = Broker.__dict__["_vouch"]
_file = Archive.__dict__["file"]


def _take_second(self: Any, first: int, digests: Any, bodies: Any) -> AppendResult:
    taken: AppendResult = _take(self, first, digests, bodies)
    if not taken.conflict:
        return taken
    for number, (digest, body) in enumerate(zip(digests, bodies, strict=True), first):
        self.ledger.correct(number, digest, body)
    return AppendResult(first, b"".join(digests))


def _echo_second(self: Any, event: Any, run: Any, value: bytes) -> list[Any]:
    return [Send(self._view.peers, Echo(self.stream, run.first, value))]


def _vote_again(
    self: Any, broker: Any, first: int, digests: bytes, bodies: Any, order: Any = ()
) -> Any:
    if first < self.next:
        self.next = first
    return _vote(self, broker, first, digests, bodies, order)


def _vouch_at_once(self: Any, desk: Any, vouch: Any) -> list[Any]:
    done: list[Any] = []
    for effect in _vouch(self, desk, vouch):
        if isinstance(effect, Persist):
            done += [*effect.then, Persist(effect.record)]
        else:
            done.append(effect)
    return done


def _file_hearsay(self: Any, broker: Any, statement: Any, signed: Any) -> Any:
    return _file(self, signed.signer, statement, signed)


def _foreign(context: Any) -> attacks.ForeignHistory:
    return attacks.ForeignHistory("ForeignHistory", context, identity_of(4, PUB))


def _adopt_and_keep(self: Any, following: Any) -> None:
    self.epoch = following.epoch
    self.directory = following.directory
    self._keys = following._keys


def _variant(
    name: str,
    mistake: str,
    patches: Sequence[Patch],
    plan: Callable[[int], CellPlan],
    *caught_by: str,
    seeds: int = 12,
) -> Variant:
    return Variant(
        name=name,
        mistake=mistake,
        patches=tuple(patches),
        attack=plan,
        caught_by=caught_by,
        seeds=seeds,
    )


def _quorum(name: str, wrong: Callable[[Quorums], int]) -> list[Patch]:
    return [Patch(Quorums, name, property(wrong))]


_FIFO_VARIANTS: tuple[Variant, ...] = (
    _variant(
        "echo-quorum", "a broker is ready at one echo too few",
        _quorum("echo", lambda q: q.intersecting - 1),
        siege("brb", *SPLIT), "Totality",
    ),
    _variant(
        "ready-accept", "a subscriber accepts at 2f readies",
        _quorum("ready_accept", lambda q: 2 * q.f),
        siege("brb", Corruption(PUB, "equivocating-publisher", 0, 100, (B4,)),
              _liar(B2, attacks.Confide, B1, SUB1)),
        "Totality",
    ),
    _variant(
        "ready-join", "a broker joins f readies",
        _quorum("ready_join", lambda q: q.f),
        siege("brb", Corruption(B2, "counterfeit")), "Authenticity", "Validity",
    ),
    _variant(
        "ab-accept", "a subscriber accepts at one vote too few",
        _quorum("intersecting", lambda q: (q.n + q.f) // 2),
        siege("ab", *SPLIT), "Agreement",
    ),
    _variant(
        "trusted-accept", "with trusted publishers f votes suffice",
        _quorum("one_correct", lambda q: q.f),
        siege("direct", Corruption(B2, "alter", 0, 100, ("contents",)), brokers=3),
        "Authenticity",
    ),
    _variant(
        "chain-checks", "a chain broker verifies one predecessor fewer",
        [Patch(Chain, "_must_vouch", lambda self, run, place: _must_vouch(self, run, place)[1:])],
        siege("chain", Corruption(B2, "alter", 0, 100, ("contents",))), "Authenticity",
    ),
    _variant(
        "chain-accept", "a subscriber accepts by the last f brokers of a chain",
        [Patch(acceptance, "last_of_chain", lambda quorums, order: order[-quorums.f :])],
        siege("chain", Corruption(B3, "alter", 100, 100, ("contents",))), "Authenticity",
    ),
    _variant(
        "chains-alike", "a subscriber accepts by 2f equal votes of different chains",
        _quorum("alike_over_chains", lambda q: 2 * q.f),
        siege("chain", _liar(PUB, attacks.SplitChain, B4),
              Corruption(B3, "two-faced", 0, 100, (B4, SUB2), PLOT)),
        "Agreement",
    ),
    _variant(
        "echo-over-chain", "the histories of a chain need no more echoes than others",
        _quorum("echo_over_chain", lambda q: q.echo),
        siege("chain+history", _liar(PUB, attacks.SplitHistory, B4, B5, B6),
              Corruption(B3, "two-faced", 0, 100, (B4, B5, B6, SUB2), PLOT), brokers=6),
        "Agreement",
    ),
    _variant(
        "ack-quorum", "one broker's word is enough for an acknowledgement",
        [Patch(FanOut, "_held_by_enough",
               lambda self: max(p.acked for p in self._progress.values()))],
        siege("ab", Corruption(B2, "lie-acks")), "Acknowledged",
    ),
    _variant(
        "receipt-votes", "f brokers sign a receipt",
        [Patch(receipts, "receipt_votes", lambda quorums, protection: quorums.f)],
        siege("brb", acts=[Act(200, "prove", SUB1, ORDERS)]), "Sound receipts",
    ),
    _variant(
        "session-mac", "packets are not authenticated",
        [Patch(Session, "_authentic", lambda self, mac, header: True)],
        siege("ab", acts=[Act(90, "forge", SUB1, ORDERS)]), "Sealed sessions",
    ),
    _variant(
        "mac-without-direction", "a session's MAC does not say who speaks to whom",
        [Patch(network, "make_session", _undirected)],
        siege("brb", *SPLIT,
              weather=Weather(latency_ms=1, jitter_ms=3, reflected=((B1, B3), (B1, B4)))),
        "Sealed sessions",
    ),
    _variant(
        "mac-without-number", "a chain MAC does not cover the number",
        [Patch(Keyring, "_covered", _covered(first=0))],
        siege("chain", _liar(B2, attacks.ShiftChain)), "Authenticity",
    ),
    _variant(
        "mac-without-channel", "a chain MAC does not cover the channel",
        [Patch(Keyring, "_covered", _covered(channel=None))],
        siege("chain", _liar(B2, attacks.CrossChain), acts=[Act(50, "submit", PUB, QUOTES, 1)]),
        "Authenticity",
    ),
    _variant(
        "mac-without-digests", "a chain MAC does not cover the contents",
        [Patch(Keyring, "_covered", _covered(digests=b""))],
        siege("chain", Corruption(B2, "alter", 0, 100, ("contents",))), "Authenticity",
    ),
    _variant(
        "words-counted", "votes are counted by message, not by broker",
        [Patch(Tally, "vote", _count_words)],
        siege("ab", _liar(B2, attacks.Insist)), "Authenticity",
    ),
    _variant(
        "no-dedup", "what was accepted is accepted again",
        [Patch(Acceptor, "vote", _vote_again)],
        siege("ab", Corruption(B2, "replay"), weather=Weather(loss=100, jitter_ms=10)),
        "Uniqueness", "FIFO",
    ),
    _variant(
        "second-contents", "a broker forwards second contents",
        [Patch(Relay, "_take", _take_second)],
        siege("ab", _liar(PUB, attacks.SecondThoughts), acts=AWAY), "One story",
    ),
    _variant(
        "echo-second", "a broker echoes second contents",
        [Patch(Bracha, "_on_repeated_publish", _echo_second)],
        siege("brb", _liar(PUB, attacks.DoubleTell, B4),
              _liar(B2, attacks.Oblige, B4, SUB2), publications=1,
              acts=[Act(50, "partition", peers=(B4, SUB2)),
                    Act(100, "partition", peers=(B4, SUB2, B2, B3, PUB)), Act(300, "heal")]),
        "One story",
    ),
    _variant(
        "history-unseen", "a broker echoes a history without looking",
        [Patch(History, "_contradicts", lambda self, statement: False)],
        siege("ab+history", _liar(PUB, attacks.FalseHistory),
              Corruption(B2, "two-faced", 0, 100, (B1, B3, B4, SUB1, SUB2), PLOT), acts=AWAY),
        "Agreement",
    ),
    _variant(
        "no-block", "brokers take more than 2α without history",
        [
            Patch(History, "_blocked", lambda self, run: False),
            Patch(History, "credit", property(lambda self: self._fast.credit)),
        ],
        siege("ab+history", _liar(PUB, attacks.SkipBoth, B4),
              Corruption(B2, "censor-node", 0, 100, (SUB2,)), publications=30),
        "Fairness",
    ),
    _variant(
        "stale-epoch", "secrets of an old epoch go on being honoured",
        [Patch(Keyring, "adopt", _adopt_and_keep)],
        siege("ab", acts=[Act(140, "stop", OWNER), Act(150, "rotate", OWNER),
                          Act(230, "steal", OWNER, ORDERS)], publishers=(PUB, OWNER)),
        "Authenticity",
    ),
    _variant(
        "foreign-statement", "a history signed for another cell is taken for one of this",
        [Patch(history, "is_ours", lambda keyring, signed, statement: True)],
        siege("ab+history", Corruption(B2, "ForeignHistory", attack=_foreign)), "Sound blame",
    ),
    _variant(
        "body-unhashed", "a subscriber takes bodies unhashed",
        [Patch(Acceptor, "_genuine", lambda self, body, digest: True)],
        siege("ab", Corruption(B2, "alter-body"),
              acts=[Act(30, "partition", peers=(B1,)), Act(300, "heal")]),
        "Authenticity",
    ),
    _variant(
        "vouch-before-persist", "a broker vouches before its journal knows",
        [Patch(Broker, "_vouch", _vouch_at_once)],
        siege("ab", _liar(PUB, attacks.ChangeOfMind), journal=True, sync_ms=60, publications=0,
              acts=[Act(20, "submit", PUB, ORDERS, 1), Act(120, "submit", PUB, ORDERS, 1),
                    Act(105, "partition", peers=(SUB2, B4)), Act(220, "heal"),
                    Act(121, "partition", peers=(SUB2, B4, PUB)),
                    *(Act(135, "crash", broker) for broker in (B1, B2, B3)),
                    *(Act(145, "restart", broker) for broker in (B1, B2, B3))]),
        "Journal",
    ),
    _variant(
        "hearsay", "evidence is made of statements that nobody signed",
        [
            Patch(Archive, "file", _file_hearsay),
            Patch(Keyring, "signature_holds", lambda self, signed: True),
        ],
        siege("brb", Corruption(B2, "forge-statements")), "Sound blame",
    ),
    _variant(
        "start-believed", "one broker alone says where a stream begins",
        [Patch(Reports, "enough", property(lambda self: 1))],
        siege("ab", Corruption(B2, "false-positions"),
              acts=[Act(200, "leave", SUB2, ORDERS), Act(240, "join", SUB2, ORDERS)]),
        "Validity", "FIFO",
    ),
)  # fmt: skip


#: Every variant: of streams in publishers' order, of total order, of getting back what was lost,
#: and of members that change.
VARIANTS: tuple[Variant, ...] = (
    *_FIFO_VARIANTS,
    *ORDER_VARIANTS,
    *RECOVERY_VARIANTS,
    *MEMBER_VARIANTS,
)
