"""Verdicts: proofs and charges of one run, put together.

*Proven*: there is evidence that anybody can verify. *Suspected*: in every explanation of the
charges, and accused by more nodes than may lie together (or a publisher that may be behind what
more brokers are accused of than may be faulty together). *Disputed*: in some explanations, or in
all of them only because of what it says of others; its score is the share of them, always below
that of a suspect, which is 1. Weather that no rule foresaw must not make a liar of whoever reports
it, so nobody is suspected for accusing, and soft charges count only where there are enough of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quorumcast.core.ids import holder
from quorumcast.pipeline.audit.charges import Case, Charge, firm_charges
from quorumcast.pipeline.audit.diagnosis import Clause, Diagnosis, Model, diagnose
from quorumcast.pipeline.audit.omissions import leader_charges, soft_charges
from quorumcast.pipeline.audit.proofs import Proof

#: Accusers that are named beside a verdict.
MOST_NAMED = 12


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
    consistent: bool


class Weights:
    """Who is accused by so many that one of them must be right."""

    def __init__(self, model: Model, firm: Sequence[Charge], soft: Sequence[Charge]) -> None:
        self._model = model
        self._by: dict[str, set[str]] = {}
        self._of: dict[str, set[str]] = {}
        for charge in (*firm, *soft):
            self._by.setdefault(charge.accused, set()).add(holder(charge.observer))
        for charge in firm:
            for node in charge.clause - {charge.accused, charge.observer}:
                self._of.setdefault(node, set()).add(charge.accused)

    def accused(self, node: str) -> bool:
        """Whether more nodes accuse it than may lie together."""
        return self._weighty(self._by.get(node, set()))

    def behind(self, node: str) -> bool:
        """Whether more nodes are accused of what may be its doing than may be faulty together."""
        return self._weighty(self._of.get(node, set()))

    def _weighty(self, nodes: set[str]) -> bool:
        brokers = len(nodes & self._model.brokers)
        return brokers > self._model.f or len(nodes) - brokers > self._model.clients


def conclude(case: Case, model: Model, proofs: Sequence[Proof]) -> Conclusion:
    """Who is in every explanation."""
    proven = tuple(dict.fromkeys(proof.accused for proof in proofs))
    certain: list[Clause] = [frozenset((node,)) for node in proven]
    firm = firm_charges(case)
    soft = soft_charges(case, firm)
    if not any(holder(charge.accused) in case.clients for charge in firm):
        # Publishers that lie about what is to be ordered stop correct leaders as well.
        soft += leader_charges(case)
    weights = Weights(model, firm, soft)
    soft = [charge for charge in soft if weights.accused(charge.accused)]
    by_firm = diagnose([*certain, *(charge.clause for charge in firm)], model)
    by_all = diagnose([*certain, *(charge.clause for charge in (*firm, *soft))], model)
    if not by_firm.consistent:
        # Something is charged that did not happen, or more nodes lie than was assumed.
        firm = [charge for charge in firm if weights.accused(charge.accused)]
        by_firm = diagnose([*certain, *(charge.clause for charge in firm)], model)
    if not by_all.consistent:
        by_all = by_firm
    named = {
        node
        for node in (*by_firm.named, *by_all.named)
        if node in proven or weights.accused(node) or weights.behind(node)
    }
    return Conclusion(
        proven=proven,
        named=tuple(sorted(named)),
        diagnosis=by_all,
        charges=(*firm, *soft),
        proofs=tuple(proofs),
        consistent=by_firm.consistent,
    )


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
    return found


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
        slandered = [charge for charge in conclusion.charges if node in charge.clause]
        by_deed["accused falsely"] = slandered
    for deed, charges in by_deed.items():
        towards = dict.fromkeys(
            charge.observer if charge.observer != node else charge.accused for charge in charges
        )
        found.append(
            Verdict(
                node=node,
                standing="suspected" if standing == "proven" else standing,
                score=score,
                deed=deed,
                towards=tuple(sorted(towards))[:MOST_NAMED],
                reasons=tuple(sorted({charge.why for charge in charges})),
                count=sum(charge.count for charge in charges),
                t_ms=min((charge.t_ms for charge in charges), default=0),
                until_ms=max((charge.until_ms for charge in charges), default=0),
                explanations=() if standing != "disputed" else explanations,
            )
        )
    return found


def _contradicted(proof: Proof) -> str:
    return "itself" if proof.deed == "equivocated" else "what f+1 other brokers signed"
