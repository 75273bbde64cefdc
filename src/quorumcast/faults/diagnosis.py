"""Who must be lying, if no more lie than the model allows?

An observation is the word of one node about another: if it is not true, the observer lies. What a
broker says of an unsettled publication may also be the doing of a publisher that told brokers
different things. So every charge is a *clause*: at least one of these nodes is faulty. An
*explanation* is a set of nodes, at most f brokers and `clients` clients among them, that has a
member in every clause. The nodes that really are faulty are one; so a node that is in *every*
explanation is faulty, and no correct one can be named as long as the charges are true and no more
nodes lie than was assumed. A node that is in some explanations only is *disputed*.

With a single accuser there are always two explanations. It takes more than f brokers or more than
`clients` clients to name a node without proof, and those who accuse more nodes than can be faulty
name themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

Clause = frozenset[str]

#: Explanations that are listed, and steps that the search for one may take.
MAX_EXPLANATIONS = 512
MAX_STEPS = 20_000


class Model:
    """How many nodes of either kind may be faulty."""

    __slots__ = ("brokers", "clients", "f")

    def __init__(self, brokers: Collection[str], f: int, clients: int = 1) -> None:
        self.brokers = frozenset(brokers)
        self.f = f
        #: How many clients may lie together.
        self.clients = clients

    def allows(self, nodes: Iterable[str]) -> bool:
        """Whether so many may be faulty at the same time."""
        faulty = frozenset(nodes)
        brokers = len(faulty & self.brokers)
        return brokers <= self.f and len(faulty) - brokers <= self.clients


class Diagnosis:
    """What follows from clauses."""

    __slots__ = ("consistent", "disputed", "explanations", "named")

    def __init__(
        self,
        named: tuple[str, ...],
        disputed: dict[str, float],
        explanations: tuple[frozenset[str], ...],
        consistent: bool,
    ) -> None:
        #: Nodes that are in every explanation.
        self.named = named
        #: Nodes that are in some, and the share of explanations that they are in.
        self.disputed = disputed
        #: The smallest explanations.
        self.explanations = explanations
        #: Whether there is any: if not, more nodes lie than the model allows.
        self.consistent = consistent


class _ExplanationSearch:
    """Looks for sets that have a member in every clause."""

    def __init__(self, clauses: Sequence[Clause], model: Model) -> None:
        self._clauses = clauses
        self._model = model
        self._steps = 0

    def exists_without(self, node: str) -> bool:
        """Whether there is an explanation without this node; True if that takes too long."""
        self._steps = 0
        return self._extend(frozenset(), frozenset((node,)))

    def _extend(self, chosen: frozenset[str], barred: frozenset[str]) -> bool:
        self._steps += 1
        if self._steps > MAX_STEPS:
            return True
        open_ = [clause - barred for clause in self._clauses if not clause & chosen]
        if not open_:
            return True
        smallest = min(open_, key=lambda clause: (len(clause), sorted(clause)))
        tried: list[str] = []
        for member in sorted(smallest):
            wider = chosen | {member}
            # What was tried before needs not be tried beside the others again.
            if self._model.allows(wider) and self._extend(wider, barred | frozenset(tried)):
                return True
            tried.append(member)
        return False

    def all_smallest(self) -> tuple[frozenset[str], ...]:
        """Explanations none of which contains another."""
        found: list[frozenset[str]] = []
        steps = 0
        front: list[frozenset[str]] = [frozenset()]
        seen: set[frozenset[str]] = set(front)
        while front and len(found) < MAX_EXPLANATIONS and steps < MAX_STEPS:
            chosen = front.pop(0)
            steps += 1
            if any(done <= chosen for done in found):
                continue
            open_ = [clause for clause in self._clauses if not clause & chosen]
            if not open_:
                found.append(chosen)
                continue
            smallest = min(open_, key=lambda clause: (len(clause), sorted(clause)))
            for member in sorted(smallest):
                wider = chosen | {member}
                if wider not in seen and self._model.allows(wider):
                    seen.add(wider)
                    front.append(wider)
        return tuple(found)


def smallest_clauses(clauses: Iterable[Clause]) -> list[Clause]:
    """Without those that follow from another one."""
    kept: list[Clause] = []
    for clause in sorted(set(clauses), key=lambda clause: (len(clause), sorted(clause))):
        if not any(other <= clause for other in kept):
            kept.append(clause)
    return kept


def diagnose(clauses: Iterable[Clause], model: Model) -> Diagnosis:
    """Who is in every explanation, and who in some."""
    kept = smallest_clauses(clauses)
    search = _ExplanationSearch(kept, model)
    explanations = search.all_smallest()
    if not explanations:
        return Diagnosis((), {}, (), consistent=not kept)
    candidates = sorted({node for clause in kept for node in clause})
    named = tuple(node for node in candidates if not search.exists_without(node))
    disputed = {}
    for node in candidates:
        share = sum(node in explanation for explanation in explanations) / len(explanations)
        if node not in named and share:
            disputed[node] = round(share, 3)
    return Diagnosis(named, disputed, explanations, consistent=True)
