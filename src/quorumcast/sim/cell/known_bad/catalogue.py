"""The known-bad variants: each mistake, its attack, and the properties of which one must break.

Read one as: "if production code did this, this plan would violate that property". This module has
the variants of channels without total order and lists the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from quorumcast.broadcast import acceptance, history
from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.broadcast.authenticated import Relay
from quorumcast.broadcast.bracha import Bracha
from quorumcast.broadcast.chain import Chain
from quorumcast.broadcast.history import History
from quorumcast.broadcast.ledger import AppendResult
from quorumcast.broadcast.messages import Echo
from quorumcast.broadcast.sender import FanOutSender
from quorumcast.cell.accusations import Accusations
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.subscribing import receipts
from quorumcast.cell.subscribing.archive import Archive
from quorumcast.cell.subscribing.reports import Reports
from quorumcast.core.machine import Accuse, Persist, Send
from quorumcast.core.quorum import Quorums
from quorumcast.core.tally import Ballot, Tally
from quorumcast.crypto import keyring
from quorumcast.crypto.identity import derive
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.mac import chain_bytes
from quorumcast.crypto.session import Family, Session
from quorumcast.sim.cell.cells import broker_names, identity_of
from quorumcast.sim.cell.known_bad import attacks
from quorumcast.sim.cell.known_bad.filtering import FILTERING_VARIANTS
from quorumcast.sim.cell.known_bad.members import MEMBER_VARIANTS
from quorumcast.sim.cell.known_bad.ordering import ORDER_VARIANTS
from quorumcast.sim.cell.known_bad.plans import PLOT, PUB1, PUB2, SUB1, SUB2, fifo_plan, mount
from quorumcast.sim.cell.known_bad.reading import READING_VARIANTS
from quorumcast.sim.cell.known_bad.recovery import RECOVERY_VARIANTS
from quorumcast.sim.cell.known_bad.waiting import WAITING_VARIANTS
from quorumcast.sim.cell.scenario import ORDERS, QUOTES
from quorumcast.sim.kernel import network
from quorumcast.sim.kernel.known_bad import Patch, Variant
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Corruption

B1, B2, B3, B4, B5, B6 = broker_names(6)
#: The publisher equivocates towards brokers 3 and 4; broker 2 helps it with them and subscriber 2.
SPLIT = (
    Corruption(PUB1, "equivocating-publisher", 0, 100, (B3, B4), PLOT),
    Corruption(B2, "two-faced", 0, 100, (B3, B4, SUB2), PLOT),
)
#: Subscriber 2 is cut off for a while.
AWAY = (Act(50, "partition", peers=(SUB2,)), Act(250, "heal"))


# ------------------------------------------------------------- the mistakes


def _covered(**omitted: Any) -> Callable[..., bytes]:
    """A chain MAC's input without some of its fields."""

    def covered(*fields: Any) -> bytes:
        cell, epoch, author, reader, stream, first, digests, order = fields
        if "channel" in omitted:
            stream = replace(stream, channel="")
        first, digests = omitted.get("first", first), omitted.get("digests", digests)
        return chain_bytes(cell, epoch, author, reader, stream, first, digests, order)

    return covered


def _undirected(
    secret: bytes, factory: Any, hello: Any, nonce: bytes, family: Family, *, caller: bool
) -> Session:
    key = factory(derive(secret, b"quorumcast session" + hello.nonce + nonce))
    return Session(key, key, family)


def _count_messages(self: Any, member: Any, value: Any) -> Ballot:
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


def _vouch_at_once(self: Any, served: Any, vouch: Any) -> list[Any]:
    done: list[Any] = []
    for effect in _vouch(self, served, vouch):
        if isinstance(effect, Persist):
            done += [*effect.then, Persist(effect.record)]
        else:
            done.append(effect)
    return done


def _file_forwarded(self: Any, broker: Any, statement: Any, signed: Any) -> Any:
    return _file(self, signed.signer, statement, signed)


def _foreign(context: Any) -> attacks.ForeignHistory:
    return attacks.ForeignHistory("ForeignHistory", context, identity_of(PUB1))


def _adopt_and_keep(self: Any, following: Any) -> None:
    self.epoch = following.epoch
    self.directory = following.directory
    self._keys = following._keys


def _keep_to_itself(self: Any, evidence: Any, to: Any) -> list[Any]:
    self._held[evidence.accused] = evidence
    return [Accuse(evidence)]


def _quorum(name: str, wrong: Callable[[Quorums], int]) -> tuple[Patch]:
    return (Patch(Quorums, name, property(wrong)),)


_FIFO_VARIANTS: tuple[Variant, ...] = (
    Variant(
        "echo-quorum", "a broker is ready at one echo too few",
        _quorum("echo", lambda q: q.intersecting - 1),
        fifo_plan("brb", *SPLIT), ("Totality",),
    ),
    Variant(
        "ready-accept", "a subscriber accepts at 2f readies",
        _quorum("ready_accept", lambda q: 2 * q.f),
        fifo_plan("brb", Corruption(PUB1, "equivocating-publisher", 0, 100, (B4,)),
                  mount(B2, attacks.confide, B1, SUB1)),
        ("Totality",),
    ),
    Variant(
        "ready-join", "a broker joins f readies",
        _quorum("ready_join", lambda q: q.f),
        fifo_plan("brb", Corruption(B2, "counterfeit")), ("Authenticity", "Validity"),
    ),
    Variant(
        "ab-accept", "a subscriber accepts at one vote too few",
        _quorum("intersecting", lambda q: (q.n + q.f) // 2),
        fifo_plan("ab", *SPLIT), ("Agreement",),
    ),
    Variant(
        "trusted-accept", "with trusted publishers f votes suffice",
        _quorum("one_correct", lambda q: q.f),
        fifo_plan("direct", Corruption(B1, "alter", 0, 100, ("contents",)), brokers=3),
        ("Authenticity",),
    ),
    Variant(
        "chain-checks", "a chain broker verifies one predecessor fewer",
        [Patch(Chain, "_must_vouch", lambda self, run, place: _must_vouch(self, run, place)[1:])],
        fifo_plan("chain", Corruption(B2, "alter", 0, 100, ("contents",))), ("Authenticity",),
    ),
    Variant(
        "chain-accept", "a subscriber accepts by the last f brokers of a chain",
        [Patch(acceptance, "last_of_chain", lambda quorums, order: order[-quorums.f :])],
        fifo_plan("chain", Corruption(B3, "alter", 100, 100, ("contents",))), ("Authenticity",),
    ),
    Variant(
        "chains-alike", "a subscriber accepts by 2f equal votes of different chains",
        _quorum("alike_over_chains", lambda q: 2 * q.f),
        fifo_plan("chain", mount(PUB1, attacks.SplitChain, B4),
                  Corruption(B3, "two-faced", 0, 100, (B4, SUB2), PLOT)),
        ("Agreement",),
    ),
    Variant(
        "echo-over-chain", "the histories of a chain need no more echoes than others",
        _quorum("echo_over_chain", lambda q: q.echo),
        fifo_plan("chain+history", mount(PUB1, attacks.FalseHistory, B4, B5, B6),
                  Corruption(B3, "two-faced", 0, 100, (B4, B5, B6, SUB2), PLOT), brokers=6),
        ("Agreement",),
    ),
    Variant(
        "ack-quorum", "one broker's word is enough for an acknowledgement",
        [Patch(FanOutSender, "_held_by_enough",
               lambda self: max(p.acked for p in self._progress.values()))],
        fifo_plan("ab", Corruption(B2, "lie-acks")), ("Acknowledged",),
    ),
    Variant(
        "receipt-votes", "f brokers sign a receipt",
        [Patch(receipts, "receipt_votes", lambda quorums, protection: quorums.f)],
        fifo_plan("brb", acts=[Act(200, "prove", SUB1, ORDERS)]), ("Sound receipts",),
    ),
    Variant(
        "session-mac", "packets are not authenticated",
        [Patch(Session, "_authentic", lambda self, mac, header: True)],
        fifo_plan("ab", acts=[Act(90, "forge", SUB1, ORDERS)]), ("Sealed sessions",),
    ),
    Variant(
        "mac-without-direction", "a session's MAC does not say who speaks to whom",
        [Patch(network, "make_session", _undirected)],
        fifo_plan("brb", *SPLIT,
                  weather=Weather(latency_ms=1, jitter_ms=3, reflected=((B1, B3), (B1, B4)))),
        ("Sealed sessions",),
    ),
    Variant(
        "mac-without-number", "a chain MAC does not cover the number",
        [Patch(keyring, "chain_bytes", _covered(first=0))],
        fifo_plan("chain", mount(B2, attacks.shift_chain)), ("Authenticity",),
    ),
    Variant(
        "mac-without-channel", "a chain MAC does not cover the channel",
        [Patch(keyring, "chain_bytes", _covered(channel=None))],
        fifo_plan("chain", mount(B2, attacks.cross_chain),
                  acts=[Act(50, "submit", PUB1, QUOTES, 1)]),
        ("Authenticity",),
    ),
    Variant(
        "mac-without-digests", "a chain MAC does not cover the contents",
        [Patch(keyring, "chain_bytes", _covered(digests=b""))],
        fifo_plan("chain", Corruption(B2, "alter", 0, 100, ("contents",))), ("Authenticity",),
    ),
    Variant(
        "words-counted", "votes are counted by message, not by broker",
        [Patch(Tally, "vote", _count_messages)],
        fifo_plan("ab", mount(B2, attacks.vote_thrice)), ("Authenticity",),
    ),
    Variant(
        "no-dedup", "what was accepted is accepted again",
        [Patch(Acceptor, "vote", _vote_again)],
        fifo_plan("ab", Corruption(B2, "replay"), weather=Weather(loss=100, jitter_ms=10)),
        ("Uniqueness", "FIFO"),
    ),
    Variant(
        "second-contents", "a broker forwards second contents",
        [Patch(Relay, "_take", _take_second)],
        fifo_plan("ab", mount(PUB1, attacks.send_second_contents), acts=AWAY), ("One story",),
    ),
    Variant(
        "echo-second", "a broker echoes second contents",
        [Patch(Bracha, "_on_repeated_publish", _echo_second)],
        fifo_plan("brb", mount(PUB1, attacks.TellThird, B4),
                  mount(B2, attacks.EchoReadies, B4, SUB2), publications=1,
                  acts=[Act(50, "partition", peers=(B4, SUB2)),
                        Act(100, "partition", peers=(B4, SUB2, B2, B3, PUB1)), Act(300, "heal")]),
        ("One story",),
    ),
    Variant(
        "history-unseen", "a broker echoes a history without looking",
        [Patch(History, "_contradicts", lambda self, statement: False)],
        fifo_plan("ab+history", mount(PUB1, attacks.FalseHistory),
                  Corruption(B2, "two-faced", 0, 100, (B1, B3, B4, SUB1, SUB2), PLOT), acts=AWAY),
        ("Agreement",),
    ),
    Variant(
        "no-block", "brokers take more than 2α without history",
        [
            Patch(History, "_blocked", lambda self, run: False),
            Patch(History, "credit", property(lambda self: self._fast.credit)),
        ],
        fifo_plan("ab+history", mount(PUB1, attacks.skip_broker_and_histories, B4),
                  Corruption(B2, "censor-node", 0, 100, (SUB2,)), publications=30),
        ("Fairness",),
    ),
    Variant(
        "stale-epoch", "secrets of an old epoch go on being honoured",
        [Patch(Keyring, "adopt", _adopt_and_keep)],
        fifo_plan("ab", acts=[Act(140, "stop", PUB2), Act(150, "rotate", PUB2),
                              Act(230, "steal", PUB2, ORDERS)], publishers=(PUB1, PUB2)),
        ("Authenticity",),
    ),
    Variant(
        "foreign-statement", "a history signed for another cell is taken for one of this",
        [Patch(history, "is_ours", lambda keyring, signed, statement: True)],
        fifo_plan("ab+history", Corruption(B2, "ForeignHistory", attack=_foreign)),
        ("Sound blame",),
    ),
    Variant(
        "body-unhashed", "a subscriber takes bodies unhashed",
        [Patch(Acceptor, "_genuine", lambda self, body, digest: True)],
        fifo_plan("ab", Corruption(B2, "alter-body"),
                  acts=[Act(30, "partition", peers=(B1,)), Act(300, "heal")]),
        ("Authenticity",),
    ),
    Variant(
        "vouch-before-persist", "a broker vouches before its journal knows",
        [Patch(Broker, "_vouch", _vouch_at_once)],
        fifo_plan("ab", mount(PUB1, attacks.change_contents),
                  journal=True, sync_ms=60, publications=0,
                  acts=[Act(20, "submit", PUB1, ORDERS, 1), Act(120, "submit", PUB1, ORDERS, 1),
                        Act(105, "partition", peers=(SUB2, B4)), Act(220, "heal"),
                        Act(121, "partition", peers=(SUB2, B4, PUB1)),
                        *(Act(135, "crash", broker) for broker in (B1, B2, B3)),
                        *(Act(145, "restart", broker) for broker in (B1, B2, B3))]),
        ("Journal",),
    ),
    Variant(
        "hearsay", "evidence is made of statements that nobody signed",
        [
            Patch(Archive, "file", _file_forwarded),
            Patch(Keyring, "signature_holds", lambda self, signed: True),
        ],
        fifo_plan("brb", Corruption(B2, "forge-statements")), ("Sound blame",),
    ),
    Variant(
        "evidence-kept", "a node reports the evidence that it finds, and hands it to no broker",
        [Patch(Accusations, "_keep", _keep_to_itself)],
        fifo_plan("brb", Corruption(B2, "false-checkpoints"), publications=40),
        ("Shared evidence",),
    ),
    Variant(
        "evidence-once", "a node hands evidence to the brokers once, over links that may lose it",
        [Patch(Accusations, "repeat", lambda self: [])],
        fifo_plan("brb", Corruption(B2, "false-checkpoints"), publications=40,
                  acts=[*(Act(60, "mute", sub, peers=(B1, B2, B3, B4)) for sub in (SUB1, SUB2)),
                        Act(340, "heal")]),
        ("Shared evidence",),
    ),
    Variant(
        "start-believed", "one broker alone says where a stream begins",
        [Patch(Reports, "enough", property(lambda self: 1))],
        fifo_plan("ab", Corruption(B2, "false-positions"),
                  acts=[Act(200, "leave", SUB2, ORDERS), Act(240, "join", SUB2, ORDERS)]),
        ("Validity", "FIFO"),
    ),
)  # fmt: skip


#: Every variant: of streams in publishers' order, of total order, of readers of the past, of
#: getting back what was lost, of members that change, and of predicates.
VARIANTS: tuple[Variant, ...] = (
    *_FIFO_VARIANTS,
    *ORDER_VARIANTS,
    *READING_VARIANTS,
    *RECOVERY_VARIANTS,
    *MEMBER_VARIANTS,
    *WAITING_VARIANTS,
    *FILTERING_VARIANTS,
)
