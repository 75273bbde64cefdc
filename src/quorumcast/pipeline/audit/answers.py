"""Charges of leaving requests unanswered, or of letting whoever asks wait."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from quorumcast.agents.audience import PULLS
from quorumcast.agents.inquiries import AGAIN, VOTED
from quorumcast.agents.turnout import PATIENCE_MS, bucket_of
from quorumcast.pipeline.audit.accounts import (
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
#: How often was asked at least what nothing got lost of.
TRIES = {"": 1, AGAIN: 2}
#: So many answers must have come, and this share of them late, before somebody is slow to answer.
ANSWERS, LATE_ANSWERS = 3, 0.8
#: So often, again and again, must nothing have come, or late, where others answer at once.
AGAIN_LATE = 2
#: So often contents were asked for in vain of who had voted for them.
WITHHELD = 2
#: So often was asked for signatures, more than once each time, of who voted and never signs.
UNSIGNED = 10


def unanswered(case: Case) -> list[Charge]:
    """Brokers that do not answer what they must, or answer for some channels only."""
    found = []
    lacked: dict[tuple[str, str], list[Feature]] = {}
    for feature in case.features:
        if (feature.kind, feature.message, feature.reason) == ("missing", "Contents", ""):
            lacked.setdefault((feature.observer, feature.accused), []).append(feature)
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
            if silent and (mute or (count >= 3 and count > answered)):
                found.append(case.charge(silent, "dropped", f"does not answer {request} requests"))
        found += _censored(case, pair)
        pulled = [f for f in pair if f.message == "Pull"]
        in_vain = [f for f in pulled if f.reason == VOTED]
        if sum(f.count for f in in_vain) >= WITHHELD and all(
            f.kind == "unanswered" for f in pulled
        ):
            withheld = [*in_vain, *lacked.get((pair[0].observer, pair[0].accused), ())]
            charge = case.charge(withheld, "dropped", "does not hand over what it votes for")
            # Once may be one burst, of what it has just let go of.
            again = charge.count >= SURE and len({f.slot for f in withheld}) > 1
            found.append(msgspec.structs.replace(charge, strong=again))
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
        if answered and sum(f.count for f in silent) >= least:
            found.append(case.charge(silent, "dropped", "answers for some channels only"))
    return found


def never_signs(case: Case, lying: Collection[str]) -> list[Charge]:
    """Brokers that vote, and sign nothing of what they voted for, however often they are asked.

    What the histories of a publisher do not settle nobody signs; so others must.
    """
    signing = {(by, who) for by, who, message in case.heard if message == "Checkpoint"}
    about = [
        f
        for f in case.features
        if (f.message, f.reason) == ("Attest", AGAIN) and f.publisher not in lying
    ]
    return [
        case.charge(pair, "dropped", "votes and does not sign what it voted for", publisher=True)
        for pair in case.pairs(about)
        if sum(f.count for f in pair) >= UNSIGNED
        and case.heard[pair[0].observer, pair[0].accused, "Vote"] >= UNSIGNED
        and (pair[0].observer, pair[0].accused) not in signing
        and pair[0].observer in {by for by, _ in signing}
    ]


def slow_to_answer(case: Case) -> list[Charge]:
    """Brokers that let whoever asks wait, every time, and alone."""
    return [
        case.charge(account.features, "delayed", f"is slow to answer {message} requests")
        for (_, message), by_accused in _answered(case).items()
        for accused, account in by_accused.items()
        if account.due.total() >= ANSWERS
        and account.share >= LATE_ANSWERS
        and is_alone(case, by_accused, accused)
    ]


def answers_some(case: Case) -> list[Charge]:
    """Brokers that leave requests unanswered, or for long, again and again, and alone."""
    accounts = _answered(case)
    for feature in case.features:
        unanswered = feature.kind == "unanswered" and feature.reason in TRIES
        if unanswered and feature.message in TIMELY:
            by_accused = accounts.setdefault((feature.observer, feature.message), {})
            by_accused.setdefault(feature.accused, Account()).add(feature, failed=True)
    several = seen_by_several(accounts)
    return [
        case.charge(account.features, "dropped", f"does not answer some {message} requests")
        for (_, message), by_accused in accounts.items()
        for accused, account in by_accused.items()
        if account.failed.total() >= AGAIN_LATE
        and account.share >= LEAST_SHARE
        # What happens once, and to all at once, is that somebody stands still.
        and len({*account.failed, *several.get((message, accused), ())}) >= LEAST_SLOTS
        and is_alone(case, by_accused, accused)
    ]


def _answered(case: Case) -> Accounts:
    """What was answered, and late.

    Who answers after everybody has lost patience stood still.
    """
    accounts: Accounts = {}
    for feature in case.features:
        answered = feature.kind == "answered" and feature.bucket <= bucket_of(PATIENCE_MS)
        if answered and feature.message in TIMELY:
            by_accused = accounts.setdefault((feature.observer, feature.message), {})
            account = by_accused.setdefault(feature.accused, Account())
            account.add(feature, failed=feature.bucket > SLOW_BUCKET)
    return accounts
