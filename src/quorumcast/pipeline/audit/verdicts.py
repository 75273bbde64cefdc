"""Verdicts on the nodes of one run, from proofs and charges.

- *Proven*: there is evidence that anybody can verify.
- *Suspected*: every explanation of the charges contains the node (`faults.diagnosis`), and more
  nodes accuse it than may lie together.
- *Disputed*: some explanations contain the node, or all do only because of its own accusations. Its
  score is the share of explanations, below 1.
- *Measured*: the node was later than the others. This is no accusation.

A firm charge is a deed that the protocol forbids. A charge of omission counts only if more nodes
make it than may lie in any case, so that a network fault at one observer names nobody. The
accusations of a node that is found faulty do not count.
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

#: Accusers, and explanations, that are listed with a verdict.
MAX_LISTED = 12
#: The standing of a measurement.
MEASURED = "measured"
#: The deed, and the prefix of its reasons, of a node that can make correct nodes look faulty.
MISLED, MISLED_WHY = "misled", "may be behind that somebody "

#: What a signed statement contradicts, by the deed that it proves.
CONTRADICTED = {"equivocated": "itself", "altered": "what f+1 other brokers signed"}


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one node for one kind of deed."""

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


class RunJudgement(msgspec.Struct, frozen=True):
    """The named nodes of one run, and the grounds."""

    proven: tuple[str, ...]
    #: Proven and suspected nodes.
    named: tuple[str, ...]
    diagnosis: Diagnosis
    charges: tuple[Charge, ...]
    proofs: tuple[Proof, ...]
    lateness: tuple[Lateness, ...] = ()


def _outnumber_liars(accusers: Collection[str], model: Model, liars: Collection[str] = ()) -> bool:
    """Whether there are more accusers than may lie.

    Known liars do not count as accusers, and each of them leaves one node fewer that may lie.
    """
    known = len(model.brokers.intersection(liars))
    heard = set(accusers).difference(liars)
    brokers = len(heard & model.brokers)
    spare_clients = model.clients - (len(liars) - known)
    return brokers > model.f - known or len(heard) - brokers > spare_clients


def judge(
    case: Case, model: Model, proofs: Sequence[Proof], dissents: Sequence[Charge] = ()
) -> RunJudgement:
    """Find the nodes that no explanation leaves out."""
    proven = tuple(dict.fromkeys(proof.accused for proof in proofs))
    firm = [c for c in table_charges(case) if c.firm] + list(dissents)
    diagnosis, named = _diagnose(model, proven, firm)
    if not diagnosis.consistent:
        # Some charges are false, or more nodes lie than the model allows.
        firm = _believable(firm, model, proven)
        diagnosis, named = _diagnose(model, proven, firm)
    lying = named.union(c.accused for c in _believable(firm, model, named)) & case.clients
    omitted = [c for c in table_charges(case, lying) if not c.firm] + omissions(case, lying)
    liars = set(named)
    while True:
        soft = _believable_omissions((*firm, *omitted), model, liars)
        diagnosis, suspected = _diagnose(model, proven, (*firm, *soft))
        while soft and not diagnosis.consistent:
            soft = _without_weakest(soft)
            diagnosis, suspected = _diagnose(model, proven, (*firm, *soft))
        if suspected <= liars:
            break
        # The omissions that a faulty node reports do not count: judge again without them.
        liars |= suspected
    return RunJudgement(
        proven=proven,
        named=tuple(sorted(named | suspected)),
        diagnosis=diagnosis,
        charges=(*firm, *soft),
        proofs=tuple(proofs),
        lateness=tuple(lateness(case)),
    )


def _believable_omissions(
    charges: Sequence[Charge], model: Model, liars: Collection[str]
) -> list[Charge]:
    """Return the omissions of nodes that more nodes accuse, of any deed, than may lie at all."""
    heard = [charge for charge in charges if holder(charge.observer) not in liars]
    return [charge for charge in _believable(heard, model) if not charge.firm]


def _diagnose(
    model: Model, proven: Sequence[str], charges: Sequence[Charge]
) -> tuple[Diagnosis, set[str]]:
    """Return the diagnosis of charges, and the nodes that it names.

    A clause without its observer rests on signatures and needs no second accuser. Each named node
    leaves fewer that may lie, so that fewer accusers are enough for the next.
    """
    certain: list[Clause] = [frozenset((node,)) for node in proven]
    diagnosis = diagnose([*certain, *(charge.clause for charge in charges)], model)
    signed = [charge.clause for charge in charges if charge.observer not in charge.clause]
    named = {*proven, *diagnose([*certain, *signed], model).named}
    while True:
        accused = {charge.accused for charge in _believable(charges, model, named)}
        more = accused.intersection(diagnosis.named) - named
        if not more:
            return diagnosis, named
        named |= more


def _believable(
    charges: Sequence[Charge], model: Model, liars: Collection[str] = ()
) -> list[Charge]:
    """Return the charges against nodes that more nodes accuse than may lie."""
    accusers = accusers_of(charges)
    return [
        charge for charge in charges if _outnumber_liars(accusers[charge.accused], model, liars)
    ]


def _without_weakest(charges: Sequence[Charge]) -> list[Charge]:
    """Return the charges without those against the nodes with the fewest accusers."""
    accusers = accusers_of(charges)
    fewest = min(map(len, accusers.values()))
    return [charge for charge in charges if len(accusers[charge.accused]) > fewest]


def verdicts(judgement: RunJudgement) -> list[NodeVerdict]:
    """Return one verdict per node and deed, the worst first."""
    found: list[NodeVerdict] = []
    nodes = [*judgement.proven]
    nodes += [node for node in judgement.named if node not in nodes]
    unnamed = [node for node in judgement.diagnosis.named if node not in judgement.named]
    disputed = {**judgement.diagnosis.disputed, **dict.fromkeys(unnamed, 1.0)}
    nodes += [node for node in disputed if node not in nodes]
    explanations = tuple(
        tuple(sorted(explanation)) for explanation in judgement.diagnosis.explanations[:MAX_LISTED]
    )
    for node in nodes:
        if node in judgement.proven:
            standing, score = "proven", 1.0
        elif node in judgement.named:
            standing, score = "suspected", 1.0
        else:
            standing, score = "disputed", min(0.99, disputed[node])
        found += _verdicts_on(judgement, node, standing, score, explanations)
    return found + _measurements(judgement.lateness)


def _measurements(late: Iterable[Lateness]) -> list[NodeVerdict]:
    """Return one row per node that was later than the others; it accuses nobody."""
    by_node: dict[str, list[Lateness]] = {}
    for one in late:
        by_node.setdefault(one.node, []).append(one)
    return [
        NodeVerdict(
            node=node,
            standing=MEASURED,
            score=0.0,
            deed="late",
            towards=tuple(sorted({one.observer for one in measured}))[:MAX_LISTED],
            reasons=tuple(sorted({one.text for one in measured})),
            count=sum(one.count for one in measured),
            t_ms=min(one.t_ms for one in measured),
            until_ms=max(one.until_ms for one in measured),
        )
        for node, measured in by_node.items()
    ]


def _verdicts_on(
    judgement: RunJudgement,
    node: str,
    standing: str,
    score: float,
    explanations: tuple[tuple[str, ...], ...],
) -> list[NodeVerdict]:
    found = [
        NodeVerdict(
            node=node,
            standing="proven",
            score=1.0,
            deed=proof.deed,
            towards=proof.shown_by[:MAX_LISTED],
            reasons=(f"signed what contradicts {CONTRADICTED[proof.deed]}: {proof.about}",),
            count=1,
            proof=proof,
        )
        for proof in judgement.proofs
        if proof.accused == node
    ]
    by_deed: dict[str, list[Charge]] = {}
    for charge in judgement.charges:
        if charge.accused == node:
            by_deed.setdefault(charge.deed, []).append(charge)
    if not by_deed and not found:
        within = [charge for charge in judgement.charges if node in charge.clause]
        caused = [charge for charge in within if node != charge.observer]
        by_deed = {MISLED: caused} if caused else {"accused falsely": within}
    for deed, charges in by_deed.items():
        towards = dict.fromkeys(
            charge.accused if deed == MISLED or charge.observer == node else charge.observer
            for charge in charges
        )
        reasons = {f"{MISLED_WHY}{c.why}" if deed == MISLED else c.why for c in charges}
        found.append(
            NodeVerdict(
                node=node,
                standing="suspected" if standing == "proven" else standing,
                score=score,
                deed=deed,
                towards=tuple(sorted(towards))[:MAX_LISTED],
                reasons=tuple(sorted(reasons)),
                count=_times(charges),
                t_ms=min((charge.t_ms for charge in charges if charge.until_ms), default=0),
                until_ms=max((charge.until_ms for charge in charges), default=0),
                explanations=() if standing != "disputed" else explanations,
            )
        )
    return found


def _times(charges: Iterable[Charge]) -> int:
    """Return the number of observations; several rules may count the same ones."""
    seen: dict[tuple[str, str, str, frozenset[str]], int] = {}
    for charge in charges:
        key = (charge.accused, charge.observer, charge.why, charge.publishers)
        seen[key] = max(charge.count, seen.get(key, 0))
    return sum(seen.values())
