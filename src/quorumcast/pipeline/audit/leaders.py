"""Charges of leading badly: leaders that proposed nothing of what they held."""

from __future__ import annotations

import msgspec

from quorumcast.pipeline.audit.charges import Case, Charge, accusers_of

GAVE_UP = "led and proposed nothing"


def leader_charges(case: Case) -> list[Charge]:
    """Leaders that most of the others gave up, and that never proposed anything meanwhile.

    A leader that proposes nothing of what it was passed has no publisher to blame for it.
    """
    idle = [f for f in case.features if (f.kind, f.reason) == ("gave-up", "idle")]
    charges = [case.charge(pair, "dropped", GAVE_UP) for pair in case.pairs(idle)]
    by, others = accusers_of(charges), len(case.manifest.brokers) - 1
    return [
        msgspec.structs.replace(charge, publishers=frozenset())
        for charge in charges
        if 2 * len(by[charge.accused]) > others
    ]
