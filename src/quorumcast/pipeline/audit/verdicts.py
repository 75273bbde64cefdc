"""Verdicts: proofs and charges of one run, put together.

*Proven*: there is evidence that anybody can verify. *Suspected*: in every explanation of the
charges, and accused by more nodes than may lie together. *Disputed*: in some explanations, or in
all of them only because of what it says of others; its score is the share of them, below 1.
*Measured*: later than the others, which says nothing of the node.

A firm charge is what the protocol forbids: its accused or its observer is faulty. A charge of
omission counts only if more nodes make it than may lie, whoever else is known to lie: weather that
no rule foresaw must not name a node that a single observer lost sight of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from quorumcast.core.ids import holder
from quorumcast.faults.diagnosis import Clause, Diagnosis, Model, diagnose
from quorumcast.pipeline.audit.charges import Case, Charge, accusers_of, table_charges
from quorumcast.pipeline.audit.lateness import Lateness, lateness
from quorumcast.pipeline.audit.omissions import omissions
from quorumcast.pipeline.audit.proofs import Proof

#: Accusers that are named beside a verdict.
MOST_NAMED = 12
#: The standing of a measurement.
MEASURED = "measured"
#: What somebody does that makes correct nodes look like liars.
BEHIND, BEHIND_WHAT = "misled", "may be behind that somebody "


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One node, and one kind of deed."""

    node: str
    standing: str
    score: float
    deed: str
    towards: tuple[str, ...]
    reasons: tuple[str, ...]
    count: int
    t_ms: int = 0
    until_ms: int = 0
    proof: Proof | None = None
    explanations: tuple[tuple[str, ...], ...] = ()


class Conclusion(msgspec.Struct, frozen=True):
    """What follows from everything that is known of one run."""

    proven: tuple[str, ...]
    named: tuple[str, ...]
    diagnosis: Diagnosis
    charges: tuple[Charge, ...]
    proofs: tuple[Proof, ...]
    lateness: tuple[Lateness, ...] = ()


def _many(accusers: Collection[str], model: Model, liars: Collection[str] = ()) -> bool:
    """Whether these are more than may lie beside those who are known to.

    The words of known liars count for nothing, and leave fewer who may lie.
    """
    known = len(model.brokers.intersection(liars))
    heard = set(accusers).difference(liars)
    brokers = len(heard & model.brokers)
    spare_clients = model.clients - (len(liars) - known)
    return brokers > model.f - known or len(heard) - brokers > spare_clients


def conclude(
    case: Case, model: Model, proofs: Sequence[Proof], dissents: Sequence[Charge] = ()
) -> Conclusion:
    """The nodes that are in every explanation."""
    proven = tuple(dict.fromkeys(proof.accused for proof in proofs))
    firm = [c for c in table_charges(case) if c.firm] + list(dissents)
    by_firm, named = _settle(model, proven, firm)
    if not by_firm.consistent:
        # Something is charged that did not happen, or more nodes lie than was assumed.
        firm = _of_many(firm, model, proven)
        by_firm, named = _settle(model, proven, firm)
    lying = named.union(c.accused for c in _of_many(firm, model, named)) & case.clients
    missed = [c for c in table_charges(case, lying) if not c.firm] + omissions(case, lying)
    liars = set(named)
    while True:
        soft = _soft((*firm, *missed), model, liars)
        by_all, also = _settle(model, proven, (*firm, *soft))
        while soft and not by_all.consistent:
            soft = _without_weakest(soft)
            by_all, also = _settle(model, proven, (*firm, *soft))
        if also <= liars:
            break
        # A node that is found out says nothing of others that counts.
        liars |= also
    return Conclusion(
        proven=proven,
        named=tuple(sorted(named | also)),
        diagnosis=by_all,
        charges=(*firm, *soft),
        proofs=tuple(proofs),
        lateness=tuple(lateness(case)),
    )


def _soft(charges: Sequence[Charge], model: Model, liars: Collection[str]) -> list[Charge]:
    """Charges of omission against those whom more accuse, of whatever, than may lie in any case."""
    heard = [charge for charge in charges if holder(charge.observer) not in liars]
    return [charge for charge in _of_many(heard, model) if not charge.firm]


def _settle(
    model: Model, proven: Sequence[str], charges: Sequence[Charge]
) -> tuple[Diagnosis, set[str]]:
    """What follows from charges, and whom it names.

    Nobody need be believed for what was signed. Each named node leaves fewer that may lie, so that
    fewer accusers are enough for the next.
    """
    certain: list[Clause] = [frozenset((node,)) for node in proven]
    diagnosis = diagnose([*certain, *(charge.clause for charge in charges)], model)
    signed = [charge.clause for charge in charges if charge.observer not in charge.clause]
    named = {*proven, *diagnose([*certain, *signed], model).named}
    while True:
        accused = {charge.accused for charge in _of_many(charges, model, named)}
        more = accused.intersection(diagnosis.named) - named
        if not more:
            return diagnosis, named
        named |= more


def _of_many(charges: Sequence[Charge], model: Model, liars: Collection[str] = ()) -> list[Charge]:
    """The charges against those whom more nodes accuse than may lie."""
    by = accusers_of(charges)
    return [charge for charge in charges if _many(by[charge.accused], model, liars)]


def _without_weakest(soft: Sequence[Charge]) -> list[Charge]:
    by = accusers_of(soft)
    fewest = min(map(len, by.values()))
    return [charge for charge in soft if len(by[charge.accused]) > fewest]


def verdicts(conclusion: Conclusion) -> list[Verdict]:
    """One verdict per node and deed, the worst first."""
    found: list[Verdict] = []
    nodes = [*conclusion.proven]
    nodes += [node for node in conclusion.named if node not in nodes]
    unnamed = [node for node in conclusion.diagnosis.named if node not in conclusion.named]
    disputed = {**conclusion.diagnosis.disputed, **dict.fromkeys(unnamed, 1.0)}
    nodes += [node for node in disputed if node not in nodes]
    explanations = tuple(
        tuple(sorted(one)) for one in conclusion.diagnosis.explanations[:MOST_NAMED]
    )
    for node in nodes:
        if node in conclusion.proven:
            standing, score = "proven", 1.0
        elif node in conclusion.named:
            standing, score = "suspected", 1.0
        else:
            standing, score = "disputed", min(0.99, disputed[node])
        found += _of_node(conclusion, node, standing, score, explanations)
    return found + _measurements(conclusion.lateness)


def _measurements(late: Iterable[Lateness]) -> list[Verdict]:
    """One row per node that was later than the others; it is no verdict on anybody."""
    by_node: dict[str, list[Lateness]] = {}
    for one in late:
        by_node.setdefault(one.node, []).append(one)
    return [
        Verdict(
            node=node,
            standing=MEASURED,
            score=0.0,
            deed="late",
            towards=tuple(sorted({one.observer for one in measured}))[:MOST_NAMED],
            reasons=tuple(sorted({one.text for one in measured})),
            count=sum(one.count for one in measured),
            t_ms=min(one.t_ms for one in measured),
            until_ms=max(one.until_ms for one in measured),
        )
        for node, measured in by_node.items()
    ]


def _of_node(
    conclusion: Conclusion,
    node: str,
    standing: str,
    score: float,
    explanations: tuple[tuple[str, ...], ...],
) -> list[Verdict]:
    found = [
        Verdict(
            node=node,
            standing="proven",
            score=1.0,
            deed=proof.deed,
            towards=proof.shown_by[:MOST_NAMED],
            reasons=(f"signed what contradicts {_contradicted(proof)}: {proof.about}",),
            count=1,
            proof=proof,
        )
        for proof in conclusion.proofs
        if proof.accused == node
    ]
    by_deed: dict[str, list[Charge]] = {}
    for charge in conclusion.charges:
        if charge.accused == node:
            by_deed.setdefault(charge.deed, []).append(charge)
    if not by_deed and not found:
        within = [charge for charge in conclusion.charges if node in charge.clause]
        behind = [charge for charge in within if node != charge.observer]
        by_deed = {BEHIND: behind} if behind else {"accused falsely": within}
    for deed, charges in by_deed.items():
        towards = dict.fromkeys(
            charge.accused if deed == BEHIND or charge.observer == node else charge.observer
            for charge in charges
        )
        reasons = {f"{BEHIND_WHAT}{c.why}" if deed == BEHIND else c.why for c in charges}
        found.append(
            Verdict(
                node=node,
                standing="suspected" if standing == "proven" else standing,
                score=score,
                deed=deed,
                towards=tuple(sorted(towards))[:MOST_NAMED],
                reasons=tuple(sorted(reasons)),
                count=_times(charges),
                t_ms=min((charge.t_ms for charge in charges if charge.until_ms), default=0),
                until_ms=max((charge.until_ms for charge in charges), default=0),
                explanations=() if standing != "disputed" else explanations,
            )
        )
    return found


def _times(charges: Iterable[Charge]) -> int:
    """How often it was seen: several rules may say the same of the same things."""
    seen: dict[tuple[str, str, str, frozenset[str]], int] = {}
    for charge in charges:
        key = (charge.accused, charge.observer, charge.why, charge.publishers)
        seen[key] = max(charge.count, seen.get(key, 0))
    return sum(seen.values())


def _contradicted(proof: Proof) -> str:
    return "itself" if proof.deed == "equivocated" else "what f+1 other brokers signed"
