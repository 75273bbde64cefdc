"""Charges of leaving requests unanswered, or of letting whoever asks wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from quorumcast.agents.audience import PULLS
from quorumcast.agents.inquiries import AGAIN, VOTED
from quorumcast.agents.turnout import MENDED, PATIENCE_MS, bucket_of
from quorumcast.pipeline.audit.accounts import (
    LEAST,
    LEAST_SHARE,
    LEAST_SLOTS,
    SLOW_BUCKET,
    Account,
    Accounts,
    is_alone,
    seen_by_several,
)
from quorumcast.pipeline.audit.charges import SURE, Case, Charge, Feature

#: By which publishers go on until they are answered: however long somebody stood still, it answers
#: in the end.
UNTIL_ANSWERED = "Open"
#: Requests that a correct node always answers; where packets get lost, requests do as well, and so
#: many must have been in vain, of whatever kind, and none successful.
ANSWERABLE = {"Subscribe": 5, "Survey": 2, UNTIL_ANSWERED: 5}
#: Those that are answered at once; what opens several streams at once is late at once.
TIMELY = tuple(request for request in ANSWERABLE if request != UNTIL_ANSWERED)
#: Where nothing gets lost so many are enough, or one of a channel, by who is answered of another.
IN_VAIN, CENSORED = 2, 1
#: So often more in vain than not, of whatever, or of one channel alone.
MOSTLY = 3
#: How often was asked at least what nothing got lost of.
TRIES = {"": 1, AGAIN: 2}
#: So many answers must have come, and this share of them late, before somebody is slow to answer.
ANSWERS, LATE_ANSWERS = 3, 0.8
#: So often must somebody itself have got no answer at once; all of them together more often.
NOT_AT_ONCE = 2
#: So often contents were asked for in vain of who had voted for them.
WITHHELD, ANSWERED_PULL = 2, ("answered", "Pull")
#: So often signatures were, of who never signs.
UNSIGNED = 10


def unanswered(case: Case) -> list[Charge]:
    """Brokers that do not answer what they must, or answer for some channels only."""
    found = []
    for pair in case.pairs(f for f in case.features if f.kind in ("answered", "unanswered")):
        for request, most in ANSWERABLE.items():
            asked = [f for f in pair if f.message == request]
            silent = [f for f in asked if f.kind == "unanswered"]
            count = sum(f.count for f in silent)
            answered = sum(f.count for f in asked) - count
            # A single request may have got lost even where nothing else was.
            clear = sum(f.count * TRIES.get(f.reason, 0) for f in silent)
            mute = all(f.kind == "unanswered" for f in pair) and (
                clear >= IN_VAIN or sum(f.count for f in pair) >= most
            )
            if request == UNTIL_ANSWERED and answered:
                continue
            if silent and (mute or (count >= MOSTLY and count > answered)):
                found.append(case.charge(silent, "dropped", f"does not answer {request} requests"))
        found += _censored(case, pair)
    return found


def _censored(case: Case, pair: list[Feature]) -> list[Charge]:
    """What is asked in vain of one channel, by who is answered of another."""
    found: list[Charge] = []
    asked = [f for f in pair if f.message in ANSWERABLE and f.channel]
    answered = {f.channel for f in asked if f.kind == "answered"}
    if len(case.manifest.channels) > PULLS:
        return found  # so many requests at a time nobody answers
    for request, most in ANSWERABLE.items():
        silent = [f for f in asked if f.message == request and f.channel not in answered]
        # A correct broker is not told apart from a deaf one where it may not have heard.
        censored = IN_VAIN if request == UNTIL_ANSWERED else CENSORED
        least = most if any(f.reason not in TRIES for f in silent) else censored
        if not silent:
            silent, least = _no_longer_answered([f for f in asked if f.message == request])
        if answered and sum(f.count for f in silent) >= least:
            found.append(case.charge(silent, "dropped", "answers for some channels only"))
    return found


def _no_longer_answered(asked: list[Feature]) -> tuple[list[Feature], int]:
    """What is asked in vain of the only channel of which anything is, and how often it must be."""
    in_vain = {f.channel for f in asked if f.kind == "unanswered"}
    silent = [f for f in asked if f.kind == "unanswered" and f.reason in TRIES]
    if len(in_vain) != 1 or not {f.channel for f in asked} - in_vain:
        return [], MOSTLY
    came = sum(f.count for f in asked if f.kind == "answered" and f.channel in in_vain)
    return silent, max(MOSTLY, came + 1)


def never_signs(case: Case, lying: Collection[str]) -> list[Charge]:
    """Brokers that vote, and sign nothing of what they voted for, however often they are asked.

    What the histories of a publisher do not settle nobody signs; so others must.
    """
    signing = {(by, who) for by, who, message in case.heard if message == "Checkpoint"}
    told = {by for by, _ in signing}
    about = [
        f
        for f in case.features
        if (f.kind, f.message, f.reason) == ("unanswered", "Attest", VOTED)
        and f.publisher not in lying
        and f.observer in told
        and (f.observer, f.accused) not in signing
    ]
    return [
        case.charge(group, "dropped", "votes and does not sign what it voted for", publisher=True)
        for pair in case.pairs(about)
        for group in _by_publisher(pair)
        if sum(f.count for f in group) >= UNSIGNED
    ]


def _by_publisher(features: Iterable[Feature]) -> list[list[Feature]]:
    by: dict[str, list[Feature]] = {}
    for feature in features:
        by.setdefault(feature.publisher, []).append(feature)
    return list(by.values())


def withholding(case: Case, lying: Collection[str]) -> list[Charge]:
    """Brokers that do not hand over what they voted for.

    What a publisher says that lies, or opens more streams than it may, they may have to let go of.
    """
    found = []
    about = [f for f in case.features if f.publisher not in case.flooding.union(lying)]
    handed = {(f.observer, f.accused) for f in about if (f.kind, f.message) == ANSWERED_PULL}
    lacked = [f for f in about if (f.kind, f.message, f.reason) == ("missing", "Contents", "")]
    pulled = [f for f in about if (f.kind, f.message, f.reason) == ("unanswered", "Pull", VOTED)]
    for pair in case.pairs(pulled):
        who = (pair[0].observer, pair[0].accused)
        if sum(f.count for f in pair) < WITHHELD or who in handed:
            continue
        withheld = [*pair, *(f for f in lacked if (f.observer, f.accused) == who)]
        charge = case.charge(
            withheld, "dropped", "does not hand over what it votes for", publisher=True
        )
        # Once may be one burst, of what it has just let go of.
        again = charge.count >= SURE and len({f.slot for f in withheld}) > 1
        found.append(msgspec.structs.replace(charge, strong=again))
    return found


def slow_to_answer(case: Case) -> list[Charge]:
    """Brokers that let whoever asks wait, every time, and alone."""
    return [
        case.charge(account.features, "delayed", f"is slow to answer {message} requests")
        for (_, message), by_accused in _answered(case.features).items()
        for accused, account in by_accused.items()
        if account.due.total() >= ANSWERS
        and account.share >= LATE_ANSWERS
        and is_alone(case, by_accused, accused)
    ]


def answers_some(case: Case) -> list[Charge]:
    """Brokers that do not answer at once, or at all, again and again, and alone."""
    accounts = _answered(f for f in case.features if f.reason != MENDED)
    for feature in case.features:
        in_vain = feature.kind == "unanswered" and feature.reason in TRIES
        if in_vain and feature.message in TIMELY:
            by_accused = accounts.setdefault((feature.observer, feature.message), {})
            by_accused.setdefault(feature.accused, Account()).add(feature, failed=True)
    several = seen_by_several(accounts)
    in_all: Counter[tuple[str, str]] = Counter()
    for (_, message), by_accused in accounts.items():
        for accused, account in by_accused.items():
            in_all[message, accused] += account.failed.total()
    found = []
    for (_, message), by_accused in accounts.items():
        for accused, account in by_accused.items():
            # What happens once, and to all at once, is that somebody stands still.
            parts = {*account.failed, *several.get((message, accused), ())}
            if (
                account.failed.total() >= NOT_AT_ONCE
                and in_all[message, accused] >= LEAST
                and account.share >= LEAST_SHARE
                and len(parts) >= LEAST_SLOTS
                and is_alone(case, by_accused, accused)
            ):
                deed = "delayed" if _all_answered(account) else "dropped"
                why = f"does not answer some {message} requests, or not at once"
                found.append(case.charge(account.features, deed, why))
    return found


def _all_answered(account: Account) -> bool:
    return all(f.kind == "answered" for f in account.features)


def _answered(features: Iterable[Feature]) -> Accounts:
    """What was answered, and what of it so late that it had to be asked for again.

    Who answers after everybody has lost patience stood still.
    """
    accounts: Accounts = {}
    for feature in features:
        answered = feature.kind == "answered" and feature.bucket <= bucket_of(PATIENCE_MS)
        if answered and feature.message in TIMELY:
            by_accused = accounts.setdefault((feature.observer, feature.message), {})
            account = by_accused.setdefault(feature.accused, Account())
            account.add(feature, failed=feature.bucket > SLOW_BUCKET)
    return accounts
