"""Charges of omission and delay: what did not come, or came late, again and again.

One lost vote says nothing. These rules look at shares: of all that enough others said, how much did
this node leave unsaid, or say late, towards this observer, compared with what the other nodes did
towards the same observer in the same run? Who stands still for a while, restarts or sits behind a
bad line is late with some things; a liar is late with most, and nobody else is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from quorumcast.agents.ordering_watch import UNSHOWN
from quorumcast.agents.standings import log_stream
from quorumcast.agents.turnout import MENDED, MUTE
from quorumcast.core.ids import CELL
from quorumcast.core.quorum import Broadcast, Protection
from quorumcast.pipeline.audit.accounts import (
    LEAST,
    LEAST_SHARE,
    SLOW_BUCKET,
    Account,
    Accounts,
    is_alone,
    is_backed,
    seen_by_several,
)
from quorumcast.pipeline.audit.answers import (
    answers_some,
    never_signs,
    slow_to_answer,
    unanswered,
    withholding,
)
from quorumcast.pipeline.audit.chains import broken_chains
from quorumcast.pipeline.audit.charges import Case, Charge, Feature
from quorumcast.pipeline.audit.gaps import TAKES_STATE, jumps_of, out_of_turn, skipping
from quorumcast.pipeline.audit.leaders import ALWAYS_SLOW, SLOW_SHARE, slow_leaders
from quorumcast.pipeline.audit.silence import deaf_to_requests

#: Correct brokers say these of every run of a correct publisher, whatever gets lost meanwhile: so
#: many missing are enough. Once enough are ready all are, unless they cannot know the stream.
CERTAIN, CERTAIN_LEAST, WHOEVER_PUBLISHES = ("Echo", "Ready"), 2, "Ready"
#: What all of them say in the end where what a publisher said is settled, though it lies: but for
#: who does so late.
WHOEVER_LIES = ("Ready", "Vote")

#: So much must be missing of what cannot but come, or of which nothing ever came, to several.
NEVER, FEWEST = 3, 2
#: So much must be missing, or late, of what a link may still have to make up for, this share of
#: what came, and in so many parts of the run: a single lost packet may have held several things.
MENDED_LEAST = {
    "Pull": (2, 0.0, 1),
    "Offer": (3, 0.02, 2),
    "Publish": (3, 0.02, 2),
    "History": (3, 0.0, 1),
}
#: So many proposals nobody could hand over.
UNFETCHED, UNFETCHABLE = 3, "proposed what nobody has"
#: So much missing or late, and this share, is enough for one witness.
STRONG, STRONG_SHARE = 20, 0.3
#: … and for two of them one of these, though it was soon over; and so much in all.
MUCH, MUCH_IN_ALL = ((10, STRONG_SHARE), (3, 0.75), (2, 1.0)), 6

#: What every broker owes whoever listens to it; later than which class what must be said is late.
OWED = ("Vote", "Ack", "Ready", "Echo", "Contents", "Accept", "Checkpoint", "Standing")
#: Of these all that come count, since each is due after the one before.
HEARTBEAT = "Standing"
#: What they say of histories too, and there all of them do: an account of its own.
OF_HISTORIES = {"Ack": "Ack (history)", "Vote": "Vote (history)"}
LATE = {"Vote": 20, "Ack": 20, "Accept": 20, "Echo": 40, "Ready": 40, "Checkpoint": 80}
#: By which a broker asks for state, for what was decided, and for what is in it.
ASKING = (TAKES_STATE, "LogQuery", "Fetch")
#: Where brokers accept what they are shown, and not what others write.
CRASH_LOG = log_stream(Protection.CRASH).channel


def soft_charges(case: Case, lying: Collection[str], firm: Sequence[Charge] = ()) -> list[Charge]:
    """Who left unsaid, or said late, what the others said in time.

    What is about the streams of publishers that may be `lying` is left out: their lies keep correct
    brokers from speaking, too. A publisher that the accused itself holds something `firm` against
    may be behind what is about that publisher, and nothing else.
    """
    chained = {
        channel.name
        for channel in case.manifest.channels
        if channel.policy.broadcast is Broadcast.CHAIN
    }
    # A publisher that lies about what is to be ordered makes correct brokers late with it.
    ordered = {channel.name for channel in case.manifest.channels if channel.policy.total}
    # Who was so late that it asked for the state does not say what it has not lived through, and
    # who asks what there is has reasons to be late, for that part of the run and the next.
    asking = {
        (f.accused, f.slot + later)
        for f in case.features
        if f.kind == "heard" and f.message in ASKING
        for later in (0, 1)
    }
    jumping = jumps_of(case)

    def owed_anyway(f: Feature) -> bool:
        return f.message in WHOEVER_LIES and case.settles(f) and f.publisher not in case.flooding

    features = [
        f
        for f in case.features
        if (f.channel not in chained or f.lane or f.message in ("Contents", "ChainRun"))
        and (f.publisher not in lying or owed_anyway(f))
        and not (f.message == "Checkpoint" and f.channel in ordered and f.accused in jumping)
    ]
    missing: Accounts = {}
    delayed: Accounts = {}
    led: Accounts = {}
    led_calmly: Accounts = {}
    for feature in features:
        beats = (feature.kind, feature.message, feature.reason) == ("heard", HEARTBEAT, "")
        if feature.kind not in ("came", "missing") and not beats:
            continue
        history = bool(feature.lane) and feature.message in OF_HISTORIES
        key = (feature.observer, OF_HISTORIES[feature.message] if history else feature.message)
        gone = feature.kind == "missing"
        if feature.message in OWED:
            account = missing.setdefault(key, {}).setdefault(feature.accused, Account())
            account.add(feature, failed=gone)
        timely = feature.channel != CRASH_LOG and (
            feature.message == "Accept"
            or feature.channel not in ordered
            or not (case.doubted & case.doubtful or (feature.accused, feature.slot) in asking)
        )
        if feature.message == "Propose" and not gone and not lying:
            for accounts in (led, led_calmly)[: 1 if feature.reason else 2]:
                account = accounts.setdefault(key, {}).setdefault(feature.accused, Account())
                account.add(feature, failed=feature.bucket > SLOW_BUCKET)
        # What never comes is later than anything, unless its sender stands still.
        late = feature.bucket > LATE.get(feature.message, 0) if not gone else feature.reason != MUTE
        if feature.message in LATE and timely and not history and feature.publisher not in lying:
            account = delayed.setdefault(key, {}).setdefault(feature.accused, Account())
            account.add(feature, failed=late)
    return [
        *_outstanding(case, missing, "dropped", "left out {} messages that the others sent", firm),
        *_unsaid(case, lying),
        *_outstanding(case, delayed, "delayed", "was late with its {} messages", firm),
        *skipping(case, features),
        *slow_leaders(case, led_calmly, SLOW_SHARE, steadily=True),
        *slow_leaders(case, led, ALWAYS_SLOW, steadily=False),
        *unanswered(case),
        *withholding(case, lying),
        *never_signs(case, lying),
        *slow_to_answer(case),
        *answers_some(case),
        *deaf_to_requests(case),
        *broken_chains(case),
        *_after_loss(case),
        *_unfetchable(case, lying),
        *out_of_turn(case),
    ]


def _outstanding(
    case: Case, accounts: Accounts, deed: str, why: str, firm: Sequence[Charge]
) -> list[Charge]:
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
            # do, but it may be late.
            owed = deed == "dropped" and message in ("Ready", *OF_HISTORIES.values())
            never = deed == "dropped" and account.never_came
            by_several = (deed, message) == ("dropped", "Vote") and accused in widely
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
                # What it was not shown a broker fetches: it is late with it, and no more.
                excused = deed == "delayed" or account.features[0].channel == CRASH_LOG
                charges = [
                    _or_leaders(case, charge) if excused else charge
                    for charge in case.charge_each(account.weighty, deed, why.format(message))
                    if charge.publishers & blamed.get(accused, set())
                    or account.fails_without(blamed.get(accused, ()), least)
                ]
                if owed:
                    charges = [_whoever_publishes(case, c) for c in charges]
                elif not excused:
                    # Nor from accepting what is ordered and voting for it: it can fetch it.
                    charges = [_of_publishers(c) for c in charges]
                if message == "Accept":
                    charges = [_or_liars(case, c, firm) for c in charges]
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

    Whoever is not shown what is to be ordered cannot accept it, and votes for it late.
    """
    if CELL not in charge.publishers:
        return charge
    unshown: Counter[str] = Counter()
    for feature in case.features:
        if (feature.observer, feature.reason) == (charge.accused, UNSHOWN):
            unshown[feature.accused] += feature.count
    leaders = {leader for leader in _heard_lead(case, charge) if unshown[leader] >= LEAST}
    return msgspec.structs.replace(charge, clause=charge.clause | leaders)


def _or_liars(case: Case, charge: Charge, firm: Sequence[Charge]) -> Charge:
    """The same charge, or one of leaders that told a broker something else than the others.

    It does not accept that, and asks the others what was decided.
    """
    if not any(who == charge.accused and message in ASKING for _, who, message in case.heard):
        return charge
    liars = {c.accused for c in firm if c.observer == charge.accused and c.deed == "equivocated"}
    leaders = liars & _heard_lead(case, charge)
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
        late = [f for f in case.features if (f.kind, f.message) == ("came", message)]
        late = [f for f in late if f.reason == MENDED and f.bucket > SLOW_BUCKET]
        found += [
            case.charge(pair, "dropped", f"owes what {message} is about")
            for pair in case.pairs([*about, *late])
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
