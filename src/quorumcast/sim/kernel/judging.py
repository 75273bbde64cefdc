"""Oracle, safety checkers and liveness promises: the interfaces by which a run is judged.

`Facts` is the oracle: the true course of the run, recorded outside the machines. A *checker* is a
safety property: it sees each effect of a correct node before `Facts` records it, and is called once
more at the end. A *promise* is a liveness property: it must hold once the network is calm. A system
extends `Facts` with the facts that its properties need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Accuse, Effect, Event, Machine, Send, Suspect
from quorumcast.sim.kernel.adversary import Adversary

#: Largest number of violations kept of a run.
MAX_VIOLATIONS = 20


class Violation(msgspec.Struct, frozen=True):
    """A property that was violated, with the details."""

    property: str
    detail: str


class Facts:
    """The oracle of a run."""

    #: Kinds of events passed to `on_event`.
    events: ClassVar[frozenset[type]] = frozenset()
    #: Kinds of effects passed to `record`.
    effects: ClassVar[frozenset[type]] = frozenset((Suspect, Accuse))

    def __init__(self, adversary: Adversary) -> None:
        self.adversary = adversary
        #: The event that is being handled.
        self.cause: Event | None = None
        #: Whether the network is calm and every node that can be up is up.
        self.calm = False
        #: Number of effects that bring promises closer. While it grows, the run goes on.
        self.progress = 0
        self.accusations: list[tuple[NodeId, Accuse]] = []
        #: Number of suspicions by (observer, suspect, reason).
        self.suspicions: dict[tuple[NodeId, NodeId, str], int] = {}
        self.violations: list[Violation] = []

    def violate(self, name: str, detail: str) -> None:
        """Report a violation; only the first few are kept."""
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(Violation(name, detail))

    def on_event(self, node: NodeId, event: Event, now: Millis) -> None:
        """Record an event of one of the kinds in `events`, before the machine handles it."""

    def record(self, node: NodeId, effect: Effect) -> None:
        """Record an effect of a correct node, after the checkers have seen it."""
        if isinstance(effect, Suspect):
            key = (node, effect.node, effect.reason.value)
            self.suspicions[key] = self.suspicions.get(key, 0) + 1
        elif isinstance(effect, Accuse):
            self.accusations.append((node, effect))

    def deliveries(self) -> int:
        """The number of messages delivered to applications."""
        return 0

    def subscriptions(self) -> tuple[int, int]:
        """The number of subscriptions, and of those among them with predicates."""
        return 0, 0

    def suspected(self, node: NodeId) -> bool:
        """Whether some correct node suspects this one."""
        return any(suspect == node for _, suspect, _ in self.suspicions)

    def convicted(self, node: NodeId) -> bool:
        """Whether some correct node holds evidence against this one."""
        return any(accuse.evidence.accused == node for _, accuse in self.accusations)


Known = TypeVar("Known", bound=Facts)
Known_contra = TypeVar("Known_contra", bound=Facts, contravariant=True)


class Checker(Protocol[Known_contra]):
    """A safety property."""

    @property
    def name(self) -> str:
        """The property's name."""

    @property
    def watches(self) -> frozenset[type]:
        """The kinds of effects to be shown; for `Send`, the kinds of messages."""

    def on_effect(self, facts: Known_contra, node: NodeId, effect: Any) -> None:
        """Judge an effect, of a kind that the checker watches, of a correct node."""

    def at_end(self, facts: Known_contra) -> None:
        """Judge the whole run."""


class EffectChecker:
    """A checker with empty methods; one that overrides `on_effect` names the effects it watches."""

    name = "?"
    watches: frozenset[type] = frozenset()

    def on_effect(self, facts: Any, node: NodeId, effect: Any) -> None:
        """Nothing by default."""

    def at_end(self, facts: Any) -> None:
        """Nothing by default."""


class Promise(Protocol[Known_contra]):
    """A liveness property."""

    @property
    def name(self) -> str:
        """The property's name."""

    def pending(self, facts: Known_contra) -> str | None:
        """A description of what is missing for the property to hold, or None."""


class Boundedness:
    """No container that a peer can feed grows past its limit."""

    name = "Boundedness"

    def __init__(self, bounds: Mapping[str, int]) -> None:
        self._bounds = bounds

    def check(self, facts: Facts, node: NodeId, machine: Machine) -> None:
        """Compare the sizes that a machine reports with the limits."""
        for what, size in machine.sizes().items():
            limit = self._bounds.get(what.rpartition("/")[2].rpartition(" ")[2])
            if limit is None:
                facts.violate(self.name, f"{node}: {what!r} has no limit to compare with")
            elif size > limit:
                facts.violate(self.name, f"{node}: {what!r} holds {size}, at most {limit} may")


class Monitor(Generic[Known]):
    """Passes events and effects to the facts and checkers that watch their kind."""

    def __init__(self, facts: Known, checkers: Sequence[Checker[Known]]) -> None:
        self.facts = facts
        #: The checkers of each kind of effect, and of each kind of sent message.
        self._watching: dict[type, list[Checker[Known]]] = {}
        for checker in checkers:
            for kind in checker.watches:
                self._watching.setdefault(kind, []).append(checker)

    def on_event(self, node: NodeId, event: Event, now: Millis) -> None:
        """Pass on an event that a machine is about to handle."""
        self.facts.cause = event
        if type(event) in self.facts.events:
            self.facts.on_event(node, event, now)

    def on_effect(self, node: NodeId, effect: Effect, now: Millis) -> None:
        """Pass on an effect that a node has carried out."""
        facts = self.facts
        kind: type = type(effect.message) if type(effect) is Send else type(effect)
        watching, recorded = self._watching.get(kind, ()), kind in facts.effects
        if (watching or recorded) and facts.adversary.is_correct(node):
            for checker in watching:
                checker.on_effect(facts, node, effect)
            if recorded:
                facts.record(node, effect)
