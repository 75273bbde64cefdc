"""Find the nodes that must be faulty, if no more are faulty than the model allows.

A charge is a *clause*: at least one of these nodes is faulty (the accused, its accuser, or a
publisher that may have told brokers different things). An *explanation* is a set of at most f
brokers and `clients` clients that has a member in every clause. The set of really faulty nodes is
an explanation, so a node that is in *every* explanation is faulty; one that is in some is
*disputed*. With a single accuser there are always two explanations: without proof it takes more
than f brokers or more than `clients` clients to name a node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

Clause = frozenset[str]

#: Explanations that are listed, and steps that the search for one may take.
MAX_EXPLANATIONS = 512
MAX_STEPS = 20_000


def _size_then_names(clause: Clause) -> tuple[int, list[str]]:
    return len(clause), sorted(clause)


class Model:
    """The number of brokers and clients that may be faulty."""

    __slots__ = ("brokers", "clients", "f")

    def __init__(self, brokers: Collection[str], f: int, clients: int = 1) -> None:
        self.brokers = frozenset(brokers)
        self.f = f
        #: How many clients may lie together.
        self.clients = clients

    def allows(self, nodes: Iterable[str]) -> bool:
        """Whether these may be faulty at the same time."""
        faulty = frozenset(nodes)
        brokers = len(faulty & self.brokers)
        return brokers <= self.f and len(faulty) - brokers <= self.clients


class Diagnosis(msgspec.Struct, frozen=True):
    """The conclusion from a set of clauses."""

    #: Nodes that are in every explanation.
    named: tuple[str, ...]
    #: Nodes that are in some, and the share of explanations that they are in.
    disputed: dict[str, float]
    #: The smallest explanations.
    explanations: tuple[frozenset[str], ...]
    #: Whether there is any: if not, more nodes are faulty than the model allows.
    consistent: bool


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
        smallest = min(open_, key=_size_then_names)
        tried: list[str] = []
        for member in sorted(smallest):
            wider = chosen | {member}
            # Sets with a member that was tried before have been searched already.
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
            smallest = min(open_, key=_size_then_names)
            for member in sorted(smallest):
                wider = chosen | {member}
                if wider not in seen and self._model.allows(wider):
                    seen.add(wider)
                    front.append(wider)
        return tuple(found)


def smallest_clauses(clauses: Iterable[Clause]) -> list[Clause]:
    """The clauses that do not follow from another one."""
    kept: list[Clause] = []
    for clause in sorted(set(clauses), key=_size_then_names):
        if not any(other <= clause for other in kept):
            kept.append(clause)
    return kept


def diagnose(clauses: Iterable[Clause], model: Model) -> Diagnosis:
    """The nodes that are in every explanation, and those in some."""
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
