"""Verdicts: proofs and charges of one run, put together.

*Proven*: there is evidence that anybody can verify. *Suspected*: in every explanation of the
charges, and accused by more nodes than may lie together (or a publisher that may be behind what
more brokers are accused of than may be faulty together). *Disputed*: in some explanations, or in
all of them only because of what it says of others; its score is the share of them, always below
that of a suspect, which is 1. *Measured*: it was later than the others, which says nothing of it.
Weather that no rule foresaw must not make a liar of whoever reports
it, so soft charges count only where there are enough of them. Charges that no weather looks like
are *sure*: whom one of these accuses, and no explanation leaves out, needs no second accuser, and
nobody who makes them against more than can be faulty is believed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from quorumcast.core.ids import CELL, holder
from quorumcast.faults.diagnosis import Clause, Diagnosis, Model, diagnose
from quorumcast.pipeline.audit.charges import Case, Charge, accusers_of, firm_charges
from quorumcast.pipeline.audit.dissents import Dissent, dissent_charges
from quorumcast.pipeline.audit.faces import two_faced
from quorumcast.pipeline.audit.lateness import Lateness, lateness
from quorumcast.pipeline.audit.leaders import GAVE_UP, leader_charges
from quorumcast.pipeline.audit.omissions import soft_charges
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
    consistent: bool
    lateness: tuple[Lateness, ...] = ()


class Weights:
    """Who is accused by so many that one of them must be right."""

    def __init__(self, model: Model, liars: Collection[str] = ()) -> None:
        #: Those who are known to lie: their words count for nothing, and leave fewer who may.
        self._liars = frozenset(liars)
        known = len(self._liars & model.brokers)
        self._brokers = model.brokers
        self._others = (model.f - known, model.clients - len(self._liars) + known)
        self._bounds = (model.f, model.clients)

    def accused(self, charges: Iterable[Charge]) -> set[str]:
        """Whom more nodes accuse than may lie beside those who are known to."""
        by = accusers_of(charges)
        return {node for node, accusers in by.items() if self._many(accusers, self._others)}

    def many(self, accusers: Iterable[str]) -> bool:
        """Whether these are more than may lie together in any case."""
        return self._many(set(accusers), self._bounds)

    def several(self, accusers: set[str]) -> bool:
        """Whether at least two of these are not known to lie."""
        return len(accusers - self._liars) > 1

    def enough(self, charges: Iterable[Charge]) -> set[str]:
        """Whom at least two accuse who are not known to lie, or one of very much."""
        by = accusers_of(charges)
        strong = accusers_of(charge for charge in charges if charge.strong)
        return {
            node
            for node, accusers in by.items()
            if self.several(accusers) or strong.get(node, set()) - self._liars
        }

    def behind(self, charges: Iterable[Charge]) -> set[str]:
        """Who may be behind what more nodes are accused of than may be faulty together.

        Several must say so where it is more only because others are known to lie; or more than may
        lie together, of what the protocol forbids, if no explanation goes without it.
        """
        of: dict[str, set[str]] = {}
        by: dict[str, set[str]] = {}
        firmly: dict[str, set[str]] = {}
        for charge in charges:
            for node in charge.clause - {charge.accused, charge.observer}:
                of.setdefault(node, set()).add(charge.accused)
                if charge.accused not in self._liars:
                    by.setdefault(node, set()).add(holder(charge.observer))
                    if charge.firm:
                        firmly.setdefault(node, set()).add(holder(charge.observer))
        return {
            node
            for node, accused in of.items()
            if self._many(accused, self._bounds)
            or (self._many(accused, self._others) and self.several(by[node]))
            or self._many(firmly.get(node, set()), self._others)
        }

    def _many(self, nodes: set[str], bounds: tuple[int, int]) -> bool:
        heard = nodes - self._liars
        brokers = len(heard & self._brokers)
        return brokers > bounds[0] or len(heard) - brokers > bounds[1]


def conclude(
    case: Case, model: Model, proofs: Sequence[Proof], dissents: Sequence[Dissent] = ()
) -> Conclusion:
    """Who is in every explanation."""
    proven = tuple(dict.fromkeys(proof.accused for proof in proofs))
    case.doubt(proven)
    firm = [*firm_charges(case), *two_faced(case), *dissent_charges(case, dissents)]
    by_firm, named = _settle(model, proven, firm)
    if not by_firm.consistent:
        # Something is charged that did not happen, or more nodes lie than was assumed.
        accused = Weights(model, proven).accused(firm)
        firm = [charge for charge in firm if charge.accused in accused]
        by_firm, named = _settle(model, proven, firm)
    weights = Weights(model, named)
    lying = (weights.accused(firm) | named) & case.clients
    soft = soft_charges(case, lying, firm)
    blamed = [c for c in (*firm, *soft) if c.accused in case.doubtful - lying]
    if not lying:
        # Publishers that lie about what is to be ordered stop correct leaders as well.
        soft += leader_charges(case)
    soft = [_excused(charge, blamed) for charge in soft]
    sure = [charge for charge in (*firm, *soft) if charge.sure]
    several = _of_several(soft, firm, weights)
    by_several, together = _settle(model, proven, [*firm, *several])
    if together - named:
        # Who is found out only beside others needs what is said of them.
        together |= set(by_several.named)
    soft = _weighty(soft, firm, weights, together)
    by_all, also = _settle(model, proven, (*firm, *soft))
    if not by_all.consistent:
        # Who gives up a leader says least of all why.
        soft = [charge for charge in soft if charge.why != GAVE_UP]
        by_all, also = _settle(model, proven, (*firm, *soft))
    while soft and not by_all.consistent:
        # What fewest say is left out first.
        soft = _without_weakest(soft)
        by_all, also = _settle(model, proven, (*firm, *soft))
    # Whoever is found out by now says nothing of others that counts.
    heard = _of_several(soft, firm, Weights(model, also))
    if len(heard) < len(soft):
        soft = heard
        by_all, also = _settle(model, proven, (*firm, *soft))
    forced = _forced(model, {*named, *also}, sure, soft, several)
    charges = (*firm, *soft)
    return Conclusion(
        proven=proven,
        named=tuple(sorted({*named, *also, *forced})),
        diagnosis=by_all,
        charges=(*charges, *(c for c in sure if c.accused in forced and c not in charges)),
        proofs=tuple(proofs),
        consistent=by_firm.consistent,
        lateness=tuple(lateness(case)),
    )


def _settle(
    model: Model, proven: Sequence[str], charges: Sequence[Charge]
) -> tuple[Diagnosis, set[str]]:
    """What follows from charges, and whom it names.

    Whoever is found out leaves fewer who may lie, so that fewer accusers are enough for the next;
    and so do several that can only be found out together.
    """
    certain: list[Clause] = [frozenset((node,)) for node in proven]
    diagnosis = diagnose([*certain, *(charge.clause for charge in charges)], model)
    named = set(proven)
    while True:
        weights = Weights(model, named)
        accused = weights.accused(charges) | weights.behind(charges)
        more = {node for node in diagnosis.named if node in accused} - named
        if not more:
            by = accusers_of(charges)
            all_ = {n for n in diagnosis.named if weights.several(by.get(n, set()))} | named
            more = {n for n in all_ if n in Weights(model, all_ - {n}).accused(charges)} - named
        if not more:
            return diagnosis, named
        named |= more


def _forced(
    model: Model,
    named: Collection[str],
    sure: Sequence[Charge],
    soft: Sequence[Charge],
    several: Sequence[Charge],
) -> set[str]:
    """Who is in every explanation of what happened for certain, however few say so.

    Where one of two brokers lies, and f is 1, a third does not excuse whom it accuses; nor does one
    of whom enough others say `soft` things. And whoever accuses more nodes of what the protocol
    forbids than can be faulty is found out by that.
    """
    certain: list[Clause] = [frozenset((node,)) for node in named]
    found = {
        node
        for charges in (sure, (*sure, *soft), (*sure, *several))
        for node in diagnose([*certain, *(c.clause for c in charges)], model).named
    }
    accused = {c.accused for c in sure if c.accused in found and holder(c.observer) not in found}
    accusing = diagnose([*certain, *(c.clause for c in sure if c.firm)], model).named
    return accused.union(accusing)


def _excused(charge: Charge, blamed: Sequence[Charge]) -> Charge:
    """A broker that is late or silent may say who is to blame: clients that lie to it alone."""
    excuses = {
        other.accused
        for other in blamed
        if other.observer == charge.accused and {CELL, other.accused} & charge.publishers
    }
    return msgspec.structs.replace(charge, clause=charge.clause | excuses)


def _of_several(soft: Sequence[Charge], firm: Sequence[Charge], weights: Weights) -> list[Charge]:
    """Soft charges against those whom enough accuse who are not known to lie."""
    enough = weights.enough((*firm, *soft))
    return [charge for charge in soft if charge.accused in enough]


def _weighty(
    soft: Sequence[Charge], firm: Sequence[Charge], weights: Weights, together: Collection[str]
) -> list[Charge]:
    """Soft charges against those whom more accuse, of whatever, than may lie together.

    Two are enough where those who are known to lie, or are found out `together`, leave fewer.
    """
    by = accusers_of((*firm, *soft))
    return [c for c in soft if weights.many(by[c.accused]) or c.accused in together]


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
                t_ms=min((charge.t_ms for charge in charges), default=0),
                until_ms=max((charge.until_ms for charge in charges), default=0),
                explanations=() if standing != "disputed" else explanations,
            )
        )
    return found


def _times(charges: Iterable[Charge]) -> int:
    """How often it was seen: several rules may say the same of the same things, or of some."""
    seen: dict[tuple[str, str, str], dict[frozenset[str], int]] = {}
    for charge in charges:
        about = seen.setdefault((charge.accused, charge.observer, charge.why), {})
        about[charge.publishers] = max(charge.count, about.get(charge.publishers, 0))
    return sum(
        count
        for about in seen.values()
        for publishers, count in about.items()
        if not any(publishers < others for others in about)
    )


def _contradicted(proof: Proof) -> str:
    return "itself" if proof.deed == "equivocated" else "what f+1 other brokers signed"
