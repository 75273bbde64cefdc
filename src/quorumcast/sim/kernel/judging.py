"""How a run is judged: facts from outside the machines, checkers, and promises at the end.

`Facts` is the oracle that checkers compare the machines' claims with. A *checker* is shown what
correct nodes do before `Facts` records it, and is asked once more when the run is over. A *promise*
must come true once the network is calm. A system extends `Facts` by what its properties speak of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Accuse, Effect, Event, Machine, Send, Suspect
from quorumcast.sim.kernel.adversary import Adversary

#: Violations of a run that are kept.
MOST_VIOLATIONS = 20


class Violation(msgspec.Struct, frozen=True):
    """A property that did not hold, and where."""

    property: str
    detail: str


class Facts:
    """What really happened in a run."""

    #: Kinds of events that `on_event` wants to see, and of effects that `record` does.
    events: ClassVar[frozenset[type]] = frozenset()
    effects: ClassVar[frozenset[type]] = frozenset((Suspect, Accuse))

    def __init__(self, adversary: Adversary) -> None:
        self.adversary = adversary
        #: The event that a node is dealing with.
        self.cause: Event | None = None
        #: Whether the network is calm and every node that can be up is up.
        self.calm = False
        #: How often anything happened that brings promises closer; while it grows, they may wait.
        self.progress = 0
        self.accusations: list[tuple[NodeId, Accuse]] = []
        #: (observer, suspect, reason) → how often.
        self.suspicions: dict[tuple[NodeId, NodeId, str], int] = {}
        self.violations: list[Violation] = []

    def violate(self, name: str, detail: str) -> None:
        """A checker has found something; only the first few are kept."""
        if len(self.violations) < MOST_VIOLATIONS:
            self.violations.append(Violation(name, detail))

    def on_event(self, node: NodeId, event: Event, now: Millis) -> None:
        """A machine is about to take an event of one of the kinds in `events`."""

    def record(self, node: NodeId, effect: Effect) -> None:
        """Note what a correct node did, after the checkers have looked at it."""
        if isinstance(effect, Suspect):
            key = (node, effect.node, effect.reason.value)
            self.suspicions[key] = self.suspicions.get(key, 0) + 1
        elif isinstance(effect, Accuse):
            self.accusations.append((node, effect))

    def deliveries(self) -> int:
        """How much reached applications."""
        return 0

    def suspected(self, node: NodeId) -> bool:
        """Whether some correct node suspects this one."""
        return any(suspect == node for _, suspect, _ in self.suspicions)

    def convicted(self, node: NodeId) -> bool:
        """Whether some correct node holds evidence against this one."""
        return any(accuse.evidence.accused == node for _, accuse in self.accusations)


Known = TypeVar("Known", bound=Facts)
Known_contra = TypeVar("Known_contra", bound=Facts, contravariant=True)


class Checker(Protocol[Known_contra]):
    """One property that must hold at every moment."""

    @property
    def name(self) -> str:
        """The property's name."""
        ...

    @property
    def watches(self) -> frozenset[type]:
        """The kinds of effects that it looks at; of what is sent, the kinds of messages."""
        ...

    def on_effect(self, facts: Known_contra, node: NodeId, effect: Effect) -> None:
        """A correct node is about to do this."""
        ...

    def at_end(self, facts: Known_contra) -> None:
        """The run is over."""
        ...


class EffectChecker:
    """A checker that only looks at what happens."""

    name = "?"
    watches: frozenset[type] = frozenset()

    def on_effect(self, facts: Any, node: NodeId, effect: Effect) -> None:
        """Nothing by default."""

    def at_end(self, facts: Any) -> None:
        """Nothing by default."""


class Promise(Protocol[Known_contra]):
    """One property that comes true in the end."""

    @property
    def name(self) -> str:
        """The property's name."""
        ...

    def pending(self, facts: Known_contra) -> str | None:
        """What is still missing, if anything."""
        ...


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
    """Shows checkers and facts what concerns them, and nothing else: most effects are sends."""

    def __init__(self, facts: Known, checkers: Sequence[Checker[Known]]) -> None:
        self.facts = facts
        #: The checkers of each kind of effect, and of each kind of message that is sent.
        self._watching: dict[type, list[Checker[Known]]] = {}
        for checker in checkers:
            for kind in checker.watches:
                self._watching.setdefault(kind, []).append(checker)

    def on_event(self, node: NodeId, event: Event, now: Millis) -> None:
        """A machine is about to take this event."""
        self.facts.cause = event
        if type(event) in self.facts.events:
            self.facts.on_event(node, event, now)

    def on_effect(self, node: NodeId, effect: Effect, now: Millis) -> None:
        """A node has carried out this effect."""
        facts = self.facts
        kind: type = type(effect.message) if type(effect) is Send else type(effect)
        watching, recorded = self._watching.get(kind, ()), kind in facts.effects
        if (watching or recorded) and facts.adversary.is_correct(node):
            for checker in watching:
                checker.on_effect(facts, node, effect)
            if recorded:
                facts.record(node, effect)
