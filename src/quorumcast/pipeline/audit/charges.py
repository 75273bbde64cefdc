"""Charges: observations that a correct node does not give cause for.

Most observations also happen to correct nodes: packets are lost, brokers restart, publishers
retransmit. RULES holds only those that the protocol forbids (two votes for one number), and
omissions that more observers report than may lie. `min_count` allows for the few that do happen.

A charge says that the accused or the observer is faulty, or the publisher if it can make correct
brokers differ. These nodes form the charge's *clause* (see `faults.diagnosis`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

import msgspec

from quorumcast.core.ids import holder
from quorumcast.faults.diagnosis import Clause
from quorumcast.manifest.manifest import Manifest
from quorumcast.watch.observation import CONTENTS
from quorumcast.watch.sequences import HOLLOW, VOTED_FIRST


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of equal observations of one run."""

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
    #: The part of the run, from 0, for kinds that are judged by part.
    slot: int = 0
    count: int = 1
    number: int = 0
    t_ms: int = 0
    until_ms: int = 0


class Charge(msgspec.Struct, frozen=True):
    """At least one node of `clause` is faulty: the accused, or a node that could feign this."""

    accused: str
    observer: str
    deed: str
    why: str
    clause: Clause
    count: int
    #: First and last time; 0 if unknown.
    t_ms: int = 0
    until_ms: int = 0
    #: The publishers of the streams concerned.
    publishers: frozenset[str] = frozenset()
    #: Whether the protocol forbids the deed. If not, the charge is an omission.
    firm: bool = False


def accusers_of(charges: Iterable[Charge]) -> dict[str, set[str]]:
    """Return the accusers of each accused node."""
    accusers: dict[str, set[str]] = {}
    for charge in charges:
        accusers.setdefault(charge.accused, set()).add(holder(charge.observer))
    return accusers


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of observation that a correct node does not give cause for."""

    kind: str
    deed: str
    why: str
    reasons: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    #: Least number of observations, and their least share of the messages with contents from the
    #: accused: one loss can cause many observations.
    min_count: int = 1
    min_share: float = 0.0
    #: Whether an equivocating publisher can cause it on channels that do not settle contents.
    by_publisher: bool = False
    #: Whether the publisher can cause it on all channels.
    on_any_channel: bool = False
    #: Whether the publisher signed the message, so that the charge is against the publisher.
    signed: bool = False
    #: Whether the rule is about clients only.
    clients_only: bool = False
    #: Least number of observers: a single one may lack a message that the others got.
    min_observers: int = 1
    #: Whether to ignore observers that had to forget streams because there were too many.
    ignore_crowded: bool = False
    #: Whether it is an omission, which more nodes must report than may lie.
    omission: bool = False

    def covers(self, feature: Feature) -> bool:
        """Whether this rule is about an observation of this kind."""
        return (
            feature.kind == self.kind
            and (not self.reasons or feature.reason in self.reasons)
            and (not self.messages or feature.message in self.messages)
            and (not self.roles or feature.role in self.roles)
        )


#: Least number and share of messages whose contents do not match their digests. An attacker on the
#: wire can alter contents, which no MAC covers; in labelled runs it alters less than 5 % of the
#: messages with contents on a link.
MIN_ALTERED, MIN_ALTERED_SHARE = 5, 0.1

_VOTES = ("Write", "Accept", "Propose")
#: Messages whose sender and receiver have fixed roles.
_OUT_OF_PLACE = (
    "Accept", "ChainRun", "Checkpoint", "Contents", "Echo", "Matches", "Open", "Propose", "Publish",
    "Pull", "Ready", "Standing", "Subscribe", "Survey", "Taken", "Vote", "Write",
)  # fmt: skip

RULES = (
    Rule(kind="suspect", reasons=("dissent",), deed="altered", by_publisher=True,
         why="voted for other contents than were accepted"),
    Rule(kind="suspect", reasons=("omits",), deed="altered", by_publisher=True,
         why="said that nothing matches a predicate where something does"),
    Rule(kind="suspect", reasons=("split",), deed="equivocated", clients_only=True,
         why="sent brokers different contents: more than f dissented"),
    Rule(kind="suspect", reasons=("equivocation",), roles=("subscriber",), deed="equivocated",
         by_publisher=True, why="voted for two contents at one number"),
    Rule(kind="suspect", reasons=("equivocation",), roles=("broker",), deed="equivocated",
         messages=("Publish", *_VOTES), why="sent two versions of one thing"),
    Rule(kind="suspect", reasons=("equivocation",), roles=("broker",), deed="equivocated",
         messages=("Offer",), signed=True, why="signed two versions of one thing"),
    *(Rule(kind=kind, reasons=("bad-body", "digests"), deed="altered", min_count=MIN_ALTERED,
           min_share=MIN_ALTERED_SHARE, why="sent contents that do not match their digest")
      for kind in ("suspect", "refused", "contradicts")),
    Rule(kind="suspect", reasons=("false-statement",), deed="altered", by_publisher=True,
         why="signed what others contradict"),
    Rule(kind="suspect", reasons=("without-history",), deed="dropped", omission=True,
         why="publishes and does not account for it"),
    Rule(kind="missing", messages=("Offer",), reasons=("",), deed="dropped", min_count=3,
         omission=True, why="let others show what it should have shown itself"),
    Rule(kind="missing", messages=("Propose",), deed="forged", min_count=3, omission=True,
         by_publisher=True, on_any_channel=True, why="proposed what it cannot hand over"),
    Rule(kind="refused", reasons=("bad-run",), deed="forged", min_count=2,
         why="sent what is malformed or signed by somebody else"),
    Rule(kind="refused", reasons=("wrong-sender",), deed="forged",
         why="spoke in another's name"),
    Rule(kind="refused", reasons=("no-right",), deed="forged", min_count=3, clients_only=True,
         why="used a channel to which it has no right"),
    Rule(kind="refused", reasons=("conflict",), messages=_VOTES,
         deed="equivocated", why="said two different things of one"),
    Rule(kind="refused", reasons=("unknown-channel",), messages=("Open", "Publish", "Subscribe"),
         deed="forged", min_count=2, clients_only=True, why="used a channel that does not exist"),
    # Not Positions: a broker that is asked twice, because it was slow, answers twice.
    Rule(kind="refused", reasons=("unexpected-message",), deed="flooded", min_observers=2,
         messages=_OUT_OF_PLACE, why="sent messages that nobody in its place sends"),
    Rule(kind="refused", reasons=("unknown-stream",), messages=("Pull",), clients_only=True,
         ignore_crowded=True, deed="flooded", min_count=2, min_observers=2,
         why="asked for streams that do not exist"),
    Rule(kind="refused", reasons=("out-of-turn",), messages=("Publish",), min_count=40,
         min_share=0.5, deed="dropped", why="left numbers out"),
    Rule(kind="contradicts", reasons=("itself",), deed="equivocated",
         why="said two different things of one"),
    Rule(kind="contradicts", reasons=("others",), deed="altered", min_count=2,
         messages=("Ready", "Accept", "LogPart", "Standing", "StateHead"),
         why="said something else than what was decided"),
    Rule(kind="contradicts", reasons=("signature",), deed="forged", min_count=2,
         why="sent signatures that do not hold"),
    Rule(kind="contradicts", reasons=("leading",), messages=("Write",),
         deed="equivocated", min_count=2, why="proposed different things to different brokers"),
    Rule(kind="contradicts", reasons=("others",), messages=("Vote",), deed="altered",
         min_count=2, by_publisher=True, why="voted otherwise than f+1 others"),
    Rule(kind="contradicts", reasons=("others",), messages=("Echo",), deed="altered",
         min_count=2, by_publisher=True, on_any_channel=True,
         why="echoed something else than what was delivered"),
    Rule(kind="contradicts", reasons=("others", "shown"), messages=("Publish",),
         deed="equivocated", min_count=2, why="showed different brokers different publications"),
    Rule(kind="boasts", reasons=("unsent",), deed="misled", min_count=2,
         why="acknowledged what was never sent"),
    Rule(kind="boasts", reasons=("credit", "ahead", "regency", "missed"), deed="misled",
         why="named numbers that nobody is near"),
    Rule(kind="passes-over", reasons=(HOLLOW,), messages=("Propose",), deed="dropped", min_count=2,
         why="proposed nothing, again and again"),
    Rule(kind="backwards", reasons=(VOTED_FIRST,), messages=("Propose",), deed="dropped",
         why="voted as leader for what it had not proposed"),
    Rule(kind="backwards", reasons=("",), messages=("Ack",), deed="reordered",
         why="acknowledged less than before"),
    Rule(kind="backwards", reasons=("decided", "fresh", "synced"), deed="misled",
         why="took back what it said of how far it is"),
)  # fmt: skip


class Case:
    """The manifest of a cell and the observations of its nodes in one run."""

    def __init__(self, manifest: Manifest, features: Iterable[Feature]) -> None:
        self.manifest = manifest
        self.features = [f for f in features if f.observer != f.accused]
        #: Channels on which a publisher can make correct brokers differ.
        self._splitting = {c.name for c in manifest.channels if c.policy.may_split}
        self.clients = {client.id for client in manifest.clients}
        crowding = [
            feature
            for feature in self.features
            if feature.reason == "unknown-stream" and feature.message in ("Open", "Publish")
        ]
        #: Publishers of so many streams that brokers evicted some, and cannot be ready for those.
        self.flooding = {feature.accused for feature in crowding}
        #: Brokers that evicted streams: they cannot tell an evicted stream from an invented one.
        self.crowded = {feature.observer for feature in crowding}
        #: Messages with contents that arrived, by (observer, accused, message).
        self._with_contents: Counter[tuple[str, str, str]] = Counter()
        for feature in self.features:
            if feature.kind == "heard" and feature.reason == CONTENTS:
                key = (feature.observer, feature.accused, feature.message)
                self._with_contents[key] += feature.count

    def applies(self, rule: Rule, feature: Feature) -> bool:
        """Whether a rule is about the nodes of an observation."""
        if rule.clients_only and holder(feature.accused) not in self.clients:
            return False
        if rule.signed and holder(feature.publisher) not in self.clients:
            return False
        return not (rule.ignore_crowded and feature.observer in self.crowded)

    def is_settled(self, feature: Feature) -> bool:
        """Whether correct brokers agree on the contents in any case, even if the publisher lies."""
        return feature.channel not in self._splitting or bool(feature.lane)

    def least_count(self, rule: Rule, group: Sequence[Feature]) -> float:
        """Return how many observations a rule needs for a charge."""
        first = group[0]
        keys = [(first.observer, first.accused, m) for m in {f.message for f in group}]
        messages = sum(self._with_contents[key] for key in keys)
        return max(rule.min_count, rule.min_share * messages)

    def charge(
        self,
        features: Sequence[Feature],
        deed: str,
        why: str,
        *,
        by_publisher: bool = False,
        on_any_channel: bool = False,
    ) -> Charge:
        """Return the charge for observations of one observer against one node."""
        first = features[0]
        clause = {first.accused, first.observer}
        publishers = {f.publisher for f in features}
        unsettled = not any(self.is_settled(f) for f in features)
        # One lying publisher does not explain observations about the streams of two.
        if by_publisher and (on_any_channel or unsettled) and len(publishers) == 1:
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

    def charge_omissions(
        self, features: Sequence[Feature], why: str, *, settled: bool
    ) -> list[Charge]:
        """Return charges of omission, one per publisher.

        A publisher may have kept its own publications from the accused, unless the message is
        `settled`: due in any case. One or two omissions beside many are no charge of their own.
        """
        least = min(3, sum(feature.count for feature in features))
        return [
            self.charge(
                group,
                "dropped",
                why,
                by_publisher=not settled or group[0].publisher in self.flooding,
            )
            for group in _grouped(features, _publisher)
            if sum(feature.count for feature in group) >= least
        ]


def _grouped(
    features: Iterable[Feature], key: Callable[[Feature], Hashable]
) -> list[list[Feature]]:
    """Return the observations with equal keys together, in the order of their first."""
    groups: dict[Hashable, list[Feature]] = {}
    for feature in features:
        groups.setdefault(key(feature), []).append(feature)
    return list(groups.values())


def _publisher(feature: Feature) -> str:
    return feature.publisher


def table_charges(case: Case, lying: Collection[str] = ()) -> list[Charge]:
    """Return the charges of RULES; a `lying` publisher's streams give no omissions of others."""
    found: list[Charge] = []
    for rule in RULES:
        covered = [f for f in case.features if rule.covers(f) and case.applies(rule, f)]
        if rule.omission:
            covered = [f for f in covered if f.publisher not in {*lying} - {f.accused}]
        if rule.signed:
            covered = [msgspec.structs.replace(f, accused=f.publisher) for f in covered]
        observers = Counter(accused for accused, _ in {(f.accused, f.observer) for f in covered})
        # Omissions are counted over all publishers.
        is_split = rule.by_publisher and not rule.omission
        enough = [f for f in covered if observers[f.accused] >= rule.min_observers]
        for features in _grouped(enough, lambda f: (f.observer, f.accused)):
            found += [
                msgspec.structs.replace(
                    case.charge(
                        group,
                        rule.deed,
                        rule.why,
                        by_publisher=rule.by_publisher,
                        on_any_channel=rule.on_any_channel,
                    ),
                    firm=not rule.omission,
                )
                for group in (_grouped(features, _publisher) if is_split else [features])
                if sum(f.count for f in group) >= case.least_count(rule, group)
            ]
    return found
