"""Charges of omission: what never came, again and again.

One lost vote says nothing. These rules look at shares: of all that enough others said, how much did
this node leave unsaid towards this observer, compared with what the other nodes did towards the
same observer in the same run? Being late is no charge at all (`lateness`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from quorumcast.agents.observing.ordering_watch import UNSHOWN
from quorumcast.agents.observing.standings import log_stream
from quorumcast.agents.observing.turnout import MENDED, MUTE
from quorumcast.core.ids import CELL
from quorumcast.core.quorum import Broadcast, Protection
from quorumcast.pipeline.audit.accounts import (
    Account,
    Accounts,
    is_alone,
    is_backed,
    seen_by_several,
)
from quorumcast.pipeline.audit.answers import (
    answers_some,
    never_signs,
    unanswered,
    withholding,
)
from quorumcast.pipeline.audit.chains import broken_chains
from quorumcast.pipeline.audit.charges import Case, Charge, Feature
from quorumcast.pipeline.audit.gaps import TAKES_STATE, jumps_of, out_of_turn, skipping
from quorumcast.pipeline.audit.silence import deaf_to_requests
from quorumcast.pipeline.audit.thresholds import (
    CERTAIN_LEAST,
    FEWEST,
    LEAST,
    LEAST_SHARE,
    MENDED_LEAST,
    MUCH,
    MUCH_IN_ALL,
    NEVER,
    STRONG,
    STRONG_SHARE,
    UNFETCHED,
)

#: Correct brokers say these of every run of a correct publisher, whatever gets lost meanwhile: so
#: many missing are enough. Once enough are ready all are, unless they cannot know the stream.
CERTAIN, WHOEVER_PUBLISHES = ("Echo", "Ready"), "Ready"
#: What all of them say in the end where what a publisher said is settled, though it lies.
WHOEVER_LIES = ("Ready", "Vote")

UNFETCHABLE = "proposed what nobody has"
#: What every broker owes whoever listens to it.
OWED = ("Vote", "Ack", "Ready", "Echo", "Contents", "Accept", "Checkpoint")
#: What they say of histories too, and there all of them do: an account of its own.
OF_HISTORIES = {"Ack": "Ack (history)", "Vote": "Vote (history)"}
#: By which a broker asks for state, and for what was decided.
ASKING = (TAKES_STATE, "LogQuery")
#: Where brokers accept what they are shown, and not what others write.
CRASH_LOG = log_stream(Protection.CRASH).channel


def soft_charges(case: Case, lying: Collection[str], firm: Sequence[Charge] = ()) -> list[Charge]:
    """Who left unsaid what the others said.

    What is about the streams of publishers that may be `lying` is left out: their lies keep correct
    brokers from speaking, too. A publisher that the accused itself holds something `firm` against
    may be behind what is about that publisher, and nothing else.
    """
    chained = {
        channel.name
        for channel in case.manifest.channels
        if channel.policy.broadcast is Broadcast.CHAIN
    }
    ordered = {channel.name for channel in case.manifest.channels if channel.policy.total}
    # A broker that took the state of others does not sign what lies before it.
    jumping = jumps_of(case)
    # A broker that asks what was decided is told, and need not accept it.
    asking = {who for _, who, message in case.heard if message in ASKING}

    def owed_anyway(f: Feature) -> bool:
        return f.message in WHOEVER_LIES and case.settles(f) and f.publisher not in case.flooding

    features = [
        f
        for f in case.features
        if (f.channel not in chained or f.lane or f.message in ("Contents", "ChainRun"))
        and (f.publisher not in lying or owed_anyway(f))
        and not (f.message == "Checkpoint" and f.channel in ordered and f.accused in jumping)
        and not (f.message == "Accept" and f.accused in asking)
    ]
    missing: Accounts = {}
    for feature in features:
        if feature.kind not in ("came", "missing") or feature.message not in OWED:
            continue
        history = bool(feature.lane) and feature.message in OF_HISTORIES
        key = (feature.observer, OF_HISTORIES[feature.message] if history else feature.message)
        account = missing.setdefault(key, {}).setdefault(feature.accused, Account())
        account.add(feature, failed=feature.kind == "missing")
    return [
        *_outstanding(case, missing, firm),
        *_unsaid(case, lying),
        *skipping(case, features),
        *unanswered(case),
        *withholding(case, lying),
        *never_signs(case, lying),
        *answers_some(case),
        *deaf_to_requests(case),
        *broken_chains(case),
        *_after_loss(case),
        *_unfetchable(case, lying),
        *out_of_turn(case),
    ]


def _outstanding(case: Case, accounts: Accounts, firm: Sequence[Charge]) -> list[Charge]:
    blamed: dict[str, set[str]] = {}
    for charge in firm:
        blamed.setdefault(charge.observer, set()).add(charge.accused)
    several = seen_by_several(accounts)
    widely = _missed_widely(case, accounts)
    found: list[Charge] = []
    for (_, message), by_accused in accounts.items():
        anyway = message == "Contents" or (message == "Vote" and is_backed(case, by_accused))
        for accused, account in by_accused.items():
            alone = anyway or is_alone(case, by_accused, accused)
            # Nothing keeps a broker from being ready, or from settling a history, once the others
            # do.
            owed = message in ("Ready", *OF_HISTORIES.values())
            never = account.never_came
            by_several = message == "Vote" and accused in widely
            least = NEVER if owed or never else LEAST
            least = FEWEST if by_several and never else least
            steady = (
                owed
                or never
                or by_several
                or account.is_steady(several.get((message, accused), ()))
            )
            if (
                account.failed.total() >= least
                and account.share >= LEAST_SHARE
                and steady
                and alone
            ):
                # Where brokers accept what they are shown, one that is not shown it cannot.
                excused = account.features[0].channel == CRASH_LOG
                why = f"left out {message} messages that the others sent"
                charges = [
                    _or_leaders(case, charge) if excused else charge
                    for charge in case.charge_each(account.weighty, "dropped", why)
                    if charge.publishers & blamed.get(accused, set())
                    or account.fails_without(blamed.get(accused, ()), least)
                ]
                if owed:
                    charges = [_whoever_publishes(case, c) for c in charges]
                elif not excused:
                    # Nor from accepting what is ordered and voting for it: it can fetch it.
                    charges = [_of_publishers(c) for c in charges]
                many = account.failed.total() >= STRONG and account.share >= STRONG_SHARE
                if many and message != "Checkpoint":
                    charges = [msgspec.structs.replace(c, strong=True) for c in charges]
                found += charges
    return found


def _missed_widely(case: Case, accounts: Accounts) -> set[str]:
    """Of whom several miss so many votes that it was no single moment, however short the run was.

    Who takes the state of others does not vote for what lies before.
    """
    missed: Counter[str] = Counter()
    in_all: Counter[str] = Counter()
    for (_, message), by_accused in accounts.items():
        for accused, account in by_accused.items():
            count, share = account.failed.total(), account.share
            enough = any(count >= least and share >= part for least, part in MUCH)
            selective = account.never_came or any(map(account.is_mixed, account.failed))
            if message == "Vote" and enough and selective:
                missed[accused] += 1
                in_all[accused] += count
    several = {who for who, observers in missed.items() if observers > 1}
    return {who for who in several if in_all[who] >= MUCH_IN_ALL} - set(jumps_of(case))


def _whoever_publishes(case: Case, charge: Charge) -> Charge:
    """The same charge without publishers, which cannot be behind it."""
    if charge.publishers & case.flooding:
        return charge
    clause = frozenset((charge.accused, charge.observer))
    return msgspec.structs.replace(charge, clause=clause, publishers=frozenset())


def _of_publishers(charge: Charge) -> Charge:
    """The same charge without what is ordered, which no publisher keeps from a broker for good."""
    return msgspec.structs.replace(charge, publishers=charge.publishers - {CELL})


def _or_leaders(case: Case, charge: Charge) -> Charge:
    """The same charge, or one of leaders that kept from a broker what they proposed to others.

    A broker that is not shown what is to be ordered cannot accept it.
    """
    if CELL not in charge.publishers:
        return charge
    unshown: Counter[str] = Counter()
    for feature in case.features:
        if (feature.observer, feature.reason) == (charge.accused, UNSHOWN):
            unshown[feature.accused] += feature.count
    leaders = {leader for leader in _heard_lead(case, charge) if unshown[leader] >= LEAST}
    return msgspec.structs.replace(charge, clause=charge.clause | leaders)


def _heard_lead(case: Case, charge: Charge) -> set[str]:
    """Who leads is no secret: others hear it propose, be it not everything."""
    return {who for by, who, kind in case.heard if kind == "Propose" and by != charge.accused}


def _unsaid(case: Case, lying: Collection[str]) -> list[Charge]:
    """What is said of every run in any weather."""
    found = []
    for message in CERTAIN:
        why = f"did not say {message} of what all must say it of"
        left_out = case.flooding if message == WHOEVER_PUBLISHES else lying
        # Who stands still for a while says nothing; that is for shares to judge.
        about = [
            f
            for f in case.features
            if (f.kind, f.message) == ("missing", message)
            and f.reason != MUTE
            and f.publisher not in left_out
        ]
        for pair in case.pairs(about):
            if sum(f.count for f in pair) < CERTAIN_LEAST:
                continue
            if message == WHOEVER_PUBLISHES:
                charge = case.charge(pair, "dropped", why)
                found.append(msgspec.structs.replace(charge, publishers=frozenset()))
            else:
                found += case.charge_each(pair, "dropped", why, always=True)
    return found


def _after_loss(case: Case) -> list[Charge]:
    """What would be firm where nothing ever gets lost."""
    found: list[Charge] = []
    came = Counter(case.heard)
    for feature in case.features:
        if (feature.kind, feature.reason) == ("refused", "duplicate"):
            came[feature.observer, feature.accused, feature.message] -= feature.count
    for message, (least, share, parts) in MENDED_LEAST.items():
        about = [f for f in case.features if (f.kind, f.message) == ("missing", message)]
        if message == "History":
            about = [f for f in about if not case.made_good(f)]
        found += [
            case.charge(pair, "dropped", f"owes what {message} is about")
            for pair in case.pairs(about)
            if sum(f.count for f in pair)
            >= max(least, share * came[pair[0].observer, pair[0].accused, message])
            and len({f.slot for f in pair}) >= parts
        ]
    return found


def _unfetchable(case: Case, lying: Collection[str]) -> list[Charge]:
    """Leaders whose proposals nobody can hand over, whatever gets lost."""
    about = [
        f
        for f in case.features
        if (f.kind, f.message) == ("missing", "Propose")
        and f.reason in ("", MENDED)
        and f.publisher not in lying
    ]
    return [
        charge
        for pair in case.pairs(about)
        if sum(f.count for f in pair) >= UNFETCHED
        for charge in case.charge_each(pair, "forged", UNFETCHABLE, always=True)
        # Of several publishers too few things each: one of them may lie, and not all.
        or [case.charge(pair, "forged", UNFETCHABLE)]
    ]
