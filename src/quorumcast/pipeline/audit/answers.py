"""Charges of leaving requests unanswered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec

from quorumcast.agents.audience import PULLS
from quorumcast.agents.observing.inquiries import VOTED
from quorumcast.agents.observing.turnout import MENDED
from quorumcast.pipeline.audit.accounts import (
    Account,
    Accounts,
    is_alone,
    seen_by_several,
)
from quorumcast.pipeline.audit.charges import Case, Charge, Feature, by_publisher
from quorumcast.pipeline.audit.thresholds import (
    ANSWERABLE,
    CENSORED,
    IN_VAIN,
    LEAST,
    LEAST_SHARE,
    LEAST_SLOTS,
    MOSTLY,
    NOT_ANSWERED,
    SURE,
    TRIES,
    UNSIGNED,
    UNTIL_ANSWERED,
    WITHHELD,
)

#: Those of which each is answered; what opens several streams at once is answered once.
EACH = tuple(request for request in ANSWERABLE if request != UNTIL_ANSWERED)
ANSWERED_PULL = ("answered", "Pull")


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
        for group in by_publisher(pair)
        if sum(f.count for f in group) >= UNSIGNED
    ]


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


def answers_some(case: Case) -> list[Charge]:
    """Brokers that never answer some requests, again and again, and alone."""
    accounts: Accounts = {}
    for f in case.features:
        in_vain = f.kind == "unanswered" and f.reason in TRIES
        if f.message in EACH and (in_vain or (f.kind == "answered" and f.reason != MENDED)):
            by_accused = accounts.setdefault((f.observer, f.message), {})
            by_accused.setdefault(f.accused, Account()).add(f, failed=in_vain)
    several = seen_by_several(accounts)
    in_all: Counter[tuple[str, str]] = Counter()
    for (_, message), by_accused in accounts.items():
        for accused, account in by_accused.items():
            in_all[message, accused] += account.failed.total()
    return [
        case.charge(account.features, "dropped", f"does not answer some {message} requests")
        for (_, message), by_accused in accounts.items()
        for accused, account in by_accused.items()
        # What happens once, and to all at once, is that somebody stands still.
        if account.failed.total() >= NOT_ANSWERED
        and in_all[message, accused] >= LEAST
        and account.share >= LEAST_SHARE
        and len({*account.failed, *several.get((message, accused), ())}) >= LEAST_SLOTS
        and is_alone(case, by_accused, accused)
    ]
