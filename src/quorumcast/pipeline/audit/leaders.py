"""Charges of leading badly: late, or not at all."""

from __future__ import annotations

import msgspec

from quorumcast.pipeline.audit.accounts import Accounts
from quorumcast.pipeline.audit.charges import Case, Charge, accusers_of

#: A leader has proposed so much, and of that this share late, or is not slow; where packets get
#: lost, and everybody has to wait, nearly all of it.
LED, SLOW_SHARE, ALWAYS_SLOW = 10, 0.3, 0.95
#: … and in so many parts of the run: who is slow is not left to lead for long.
LED_SLOTS = 2

GAVE_UP = "led and did not get anything ordered"


def slow_leaders(case: Case, accounts: Accounts, share: float, *, steadily: bool) -> list[Charge]:
    """Leaders under whom so much of what is offered waits, all the time."""
    return [
        case.charge(account.features, "delayed", "proposed late what had long been offered")
        for by_accused in accounts.values()
        for account in by_accused.values()
        if (due := sum(account.due_since.values())) >= LED
        and account.failed.total() >= share * due
        and (account.is_steady(least=LED_SLOTS) or not steadily)
    ]


def leader_charges(case: Case) -> list[Charge]:
    """Leaders that are alive, and under whom nothing got ordered.

    A leader that proposes nothing of what it was passed has no publisher to blame for it.
    """
    found = []
    for reason in ("alive", "idle"):
        given_up = [f for f in case.features if (f.kind, f.reason) == ("gave-up", reason)]
        charges = [case.charge(pair, "dropped", GAVE_UP) for pair in case.pairs(given_up)]
        if reason == "idle":
            charges = [msgspec.structs.replace(c, publishers=frozenset()) for c in charges]
        found += charges
    # Under such a leader most of the others wait, and not just one that got behind.
    by, others = accusers_of(found), len(case.manifest.brokers) - 1
    return [charge for charge in found if 2 * len(by[charge.accused]) > others]
