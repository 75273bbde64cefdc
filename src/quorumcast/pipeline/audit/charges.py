"""Charges: which observations say that somebody is faulty, what it did, and who else may have.

Most of what nodes note of each other happens to correct nodes as well: packets get lost, brokers
restart, publishers repeat themselves. A rule is here only if a correct node does not do this to a
correct observer, however bad the weather: either because the protocol forbids it (two votes for one
number), or because it would have to happen again and again, and more than to anybody else (votes
that never come). `at_least` leaves room for the little that does happen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec

from quorumcast.core.ids import holder
from quorumcast.faults.diagnosis import Clause
from quorumcast.manifest.manifest import Manifest
from quorumcast.watch.sequences import HOLLOW, VOTED_FIRST


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """Equal observations of one run, added up."""

    observer: str
    role: str
    accused: str
    kind: str
    reason: str = ""
    message: str = ""
    channel: str = ""
    publisher: str = ""
    lane: int = 0
    bucket: int = 0
    #: Which part of the run it fell into, where that matters.
    slot: int = 0
    count: int = 1
    number: int = 0
    t_ms: int = 0
    until_ms: int = 0


class Charge(msgspec.Struct, frozen=True):
    """One of `clause` is faulty: the accused did this to the observer, or another one lies."""

    accused: str
    observer: str
    deed: str
    why: str
    clause: Clause
    count: int
    #: From when to when, if that is known.
    t_ms: int = 0
    until_ms: int = 0
    #: Whose streams it is about.
    publishers: frozenset[str] = frozenset()
    #: Whether the protocol forbids it, whatever happens; otherwise it is an omission.
    firm: bool = False


def accusers_of(charges: Iterable[Charge]) -> dict[str, set[str]]:
    """Who accuses whom."""
    by: dict[str, set[str]] = {}
    for charge in charges:
        by.setdefault(charge.accused, set()).add(holder(charge.observer))
    return by


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Observations that a correct node does not give cause for."""

    kind: str
    deed: str
    why: str
    reasons: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    at_least: int = 1
    #: … and this share of all that came from the accused of this kind: a single loss may be of many
    #: things.
    share: float = 0.0
    #: Whether a publisher that tells brokers different things may be behind it.
    publisher: bool = False
    #: … even where it is settled in the end.
    always: bool = False
    #: Whether the stream's publisher has signed it, whoever passed it on.
    signed: bool = False
    #: Whether it is only about clients.
    of_clients: bool = False
    #: So many must say so, where one may not have been told what the others were.
    by: int = 1
    #: … and not where the observer has too many streams to remember all of them.
    uncrowded: bool = False
    #: Whether it is something that did not happen, which more nodes must say than may lie.
    omission: bool = False

    def covers(self, feature: Feature) -> bool:
        """Whether this rule is about such observations."""
        return (
            feature.kind == self.kind
            and (not self.reasons or feature.reason in self.reasons)
            and (not self.messages or feature.message in self.messages)
            and (not self.roles or feature.role in self.roles)
        )


_VOTES = ("Write", "Accept", "Propose")
#: Messages of which everybody knows who says them to whom.
_OUT_OF_PLACE = (
    "Accept", "ChainRun", "Checkpoint", "Contents", "Echo", "Open", "Propose", "Publish", "Pull",
    "Ready", "Standing", "Subscribe", "Survey", "Taken", "Vote", "Write",
)  # fmt: skip

RULES = (
    Rule(kind="suspect", reasons=("dissent",), deed="altered", publisher=True,
         why="voted for other contents than were accepted"),
    Rule(kind="suspect", reasons=("equivocation",), roles=("subscriber",), deed="equivocated",
         publisher=True, why="voted for two contents at one number"),
    Rule(kind="suspect", reasons=("equivocation",), roles=("broker",), deed="equivocated",
         messages=("Publish", *_VOTES), why="sent two versions of one thing"),
    Rule(kind="suspect", reasons=("equivocation",), roles=("broker",), deed="equivocated",
         messages=("Offer",), signed=True, why="signed two versions of one thing"),
    Rule(kind="suspect", reasons=("bad-body",), deed="altered", at_least=2, share=0.05,
         why="sent contents that do not match their digest"),
    Rule(kind="suspect", reasons=("false-statement",), deed="altered", publisher=True,
         why="signed what others contradict"),
    Rule(kind="suspect", reasons=("without-history",), deed="dropped", omission=True,
         why="publishes and does not account for it"),
    Rule(kind="missing", messages=("Offer",), reasons=("",), deed="dropped", at_least=3,
         omission=True, why="let others show what it should have shown itself"),
    Rule(kind="missing", messages=("Propose",), deed="forged", at_least=3, omission=True,
         publisher=True, always=True, why="proposed what it cannot hand over"),
    Rule(kind="refused", reasons=("bad-body",), deed="altered", at_least=2,
         why="sent contents that do not match their digest"),
    Rule(kind="refused", reasons=("bad-run",), deed="forged", at_least=2,
         why="sent what is malformed or signed by somebody else"),
    Rule(kind="refused", reasons=("wrong-sender",), deed="forged",
         why="spoke in another's name"),
    Rule(kind="refused", reasons=("no-right",), deed="forged", at_least=3, of_clients=True,
         why="used a channel to which it has no right"),
    Rule(kind="refused", reasons=("conflict",), messages=_VOTES,
         deed="equivocated", why="said two different things of one"),
    Rule(kind="refused", reasons=("unknown-channel",), messages=("Open", "Publish", "Subscribe"),
         deed="forged", at_least=2, of_clients=True, why="used a channel that does not exist"),
    # Not Positions: a broker that is asked twice, because it was slow, answers twice.
    Rule(kind="refused", reasons=("unexpected-message",), deed="flooded", by=2,
         messages=_OUT_OF_PLACE, why="sent messages that nobody in its place sends"),
    Rule(kind="refused", reasons=("unknown-stream",), messages=("Pull",), of_clients=True,
         uncrowded=True, deed="flooded", at_least=2, by=2,
         why="asked for streams that do not exist"),
    Rule(kind="refused", reasons=("out-of-turn",), messages=("Publish",), at_least=40,
         share=0.5, deed="dropped", why="left numbers out"),
    Rule(kind="contradicts", reasons=("itself",), deed="equivocated",
         why="said two different things of one"),
    Rule(kind="contradicts", reasons=("others",), deed="altered", at_least=2,
         messages=("Ready", "Accept", "LogPart", "Standing", "StateHead"),
         why="said something else than what was decided"),
    Rule(kind="contradicts", reasons=("digests",), deed="altered",
         why="sent contents that do not match their digest"),
    Rule(kind="contradicts", reasons=("signature",), deed="forged", at_least=2,
         why="sent signatures that do not hold"),
    Rule(kind="contradicts", reasons=("leading",), messages=("Write",),
         deed="equivocated", at_least=2, why="proposed different things to different brokers"),
    Rule(kind="contradicts", reasons=("others",), messages=("Vote",), deed="altered",
         at_least=2, publisher=True, why="voted otherwise than f+1 others"),
    Rule(kind="contradicts", reasons=("others",), messages=("Echo",), deed="altered",
         at_least=2, publisher=True, always=True,
         why="echoed something else than what was delivered"),
    Rule(kind="contradicts", reasons=("others", "shown"), messages=("Publish",),
         deed="equivocated", at_least=2, why="showed different brokers different publications"),
    Rule(kind="boasts", reasons=("unsent",), deed="misled", at_least=2,
         why="acknowledged what was never sent"),
    Rule(kind="boasts", reasons=("credit", "ahead", "regency", "missed"), deed="misled",
         why="named numbers that nobody is near"),
    Rule(kind="passes-over", reasons=(HOLLOW,), messages=("Propose",), deed="dropped", at_least=2,
         why="proposed nothing, again and again"),
    Rule(kind="backwards", reasons=(VOTED_FIRST,), messages=("Propose",), deed="dropped",
         why="voted as leader for what it had not proposed"),
    Rule(kind="backwards", reasons=("",), messages=("Ack",), deed="reordered",
         why="acknowledged less than before"),
    Rule(kind="backwards", reasons=("decided", "fresh", "synced"), deed="misled",
         why="took back what it said of how far it is"),
)  # fmt: skip


class Case:
    """One cell, and what its nodes noted of each other."""

    def __init__(self, manifest: Manifest, features: Iterable[Feature]) -> None:
        self.manifest = manifest
        self.features = [f for f in features if f.observer != f.accused]
        self._unsettled = {c.name for c in manifest.channels if c.policy.may_split}
        self.clients = {client.id for client in manifest.clients}
        crowding = [
            feature
            for feature in self.features
            if feature.reason == "unknown-stream" and feature.message in ("Open", "Publish")
        ]
        #: Publishers of so many streams that some had to give way: of those nobody can be ready.
        self.flooding = {feature.accused for feature in crowding}
        #: … and at whom: it cannot tell a stream that was never there from one that gave way.
        self.crowded = {feature.observer for feature in crowding}
        #: How many messages of a kind came from a node, and how many things that were due.
        self.heard: Counter[tuple[str, str, str]] = Counter()
        self._came: Counter[tuple[str, str, str]] = Counter()
        for feature in self.features:
            key = (feature.observer, feature.accused, feature.message)
            if feature.kind == "heard" and not feature.reason:
                self.heard[key] += feature.count
            elif feature.kind == "came":
                self._came[key] += feature.count

    def concerns(self, rule: Rule, feature: Feature) -> bool:
        """Whether an observation is about such nodes as the rule is about."""
        if rule.of_clients and holder(feature.accused) not in self.clients:
            return False
        if rule.signed and holder(feature.publisher) not in self.clients:
            return False
        return not (rule.uncrowded and feature.observer in self.crowded)

    def settles(self, feature: Feature) -> bool:
        """Whether correct brokers agree on what this is about, whoever published it."""
        return feature.channel not in self._unsettled or bool(feature.lane)

    def due(self, rule: Rule, group: Sequence[Feature]) -> float:
        """The share of messages that a rule wants, as a number of them."""
        first = group[0]
        keys = [(first.observer, first.accused, m) for m in {f.message for f in group}]
        return rule.share * sum(max(self.heard[key], self._came[key]) for key in keys)

    def charge(
        self,
        features: Sequence[Feature],
        deed: str,
        why: str,
        *,
        publisher: bool = False,
        always: bool = False,
    ) -> Charge:
        """The charge that features of one observer against one node amount to."""
        first = features[0]
        clause = {first.accused, first.observer}
        publishers = {f.publisher for f in features}
        unsettled = not any(self.settles(f) for f in features)
        # A lie about a second publisher's stream would have to be a second publisher's.
        if publisher and (always or unsettled) and len(publishers) == 1:
            clause |= publishers & self.clients
        return Charge(
            accused=first.accused,
            observer=first.observer,
            deed=deed,
            why=why,
            clause=frozenset(clause),
            count=sum(f.count for f in features),
            t_ms=min(f.t_ms for f in features),
            until_ms=max(f.until_ms for f in features),
            publishers=frozenset(publishers),
        )

    def charge_each(self, features: Sequence[Feature], why: str, *, settled: bool) -> list[Charge]:
        """Charges of omission, one per publisher.

        Each publisher may have kept its own publications from the accused, unless all brokers say
        this in the end. One or two things beside many are no charge of their own.
        """
        least = min(3, sum(feature.count for feature in features))
        return [
            self.charge(
                group,
                "dropped",
                why,
                publisher=not settled or group[0].publisher in self.flooding,
            )
            for group in by_publisher(features)
            if sum(feature.count for feature in group) >= least
        ]

    def pairs(self, features: Iterable[Feature]) -> list[list[Feature]]:
        """Features by observer and accused."""
        grouped: dict[tuple[str, str], list[Feature]] = {}
        for feature in features:
            grouped.setdefault((feature.observer, feature.accused), []).append(feature)
        return list(grouped.values())


def by_publisher(features: Iterable[Feature]) -> list[list[Feature]]:
    """Features by whose streams they are about."""
    grouped: dict[str, list[Feature]] = {}
    for feature in features:
        grouped.setdefault(feature.publisher, []).append(feature)
    return list(grouped.values())


def table_charges(case: Case, lying: Collection[str] = ()) -> list[Charge]:
    """What the rules of the table find; others omit nothing of what a `lying` publisher owes."""
    found: list[Charge] = []
    for rule in RULES:
        covered = [f for f in case.features if rule.covers(f) and case.concerns(rule, f)]
        if rule.omission:
            covered = [f for f in covered if f.publisher not in {*lying} - {f.accused}]
        if rule.signed:
            covered = [msgspec.structs.replace(f, accused=f.publisher) for f in covered]
        saying = {(f.accused, f.observer) for f in covered}
        by = Counter(accused for accused, _ in saying)
        # What is omitted counts together, whoever published it.
        apart = rule.publisher and not rule.omission
        for features in case.pairs(f for f in covered if by[f.accused] >= rule.by):
            found += [
                msgspec.structs.replace(
                    case.charge(
                        group, rule.deed, rule.why, publisher=rule.publisher, always=rule.always
                    ),
                    firm=not rule.omission,
                )
                for group in (by_publisher(features) if apart else [features])
                if sum(f.count for f in group) >= max(rule.at_least, case.due(rule, group))
            ]
    return found
