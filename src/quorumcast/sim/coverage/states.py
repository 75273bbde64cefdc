"""The protocol states that scenarios should reach, policy by policy.

States are observable behaviours here, not those of an automaton. The list is extracted from the
source, so that it follows the code: every drop reason and suspicion that a module names, message
that it dispatches on, timer and record that it defines, and rare effect that it creates is a state
of the role that runs the module, under the policies that use the module.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import get_args

import msgspec

from quorumcast.cell.messages import CellMessage
from quorumcast.core.errors import ensure
from quorumcast.core.machine import DropReason, Suspicion
from quorumcast.manifest.policy import POLICY_NAMES
from quorumcast.sim.coverage.transitions import Transition

PACKAGE = Path(__file__).parents[2]

FIFO = ("direct*", "ab*", "brb", "chain*")
TOTAL = ("total*",)
HISTORY = ("*+history",)
#: Policies whose brokers fetch lost publications from peers.
RECOVERED = ("direct*", "ab*", "brb")
ALL = ("*",)

#: Modules, each with the role that runs it and patterns of the policies that use it.
MODULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("broadcast/authenticated.py", "broker", ("direct*", "ab*")),
    ("broadcast/bracha.py", "broker", ("brb", *HISTORY)),
    ("broadcast/chain.py", "broker", ("chain*",)),
    ("broadcast/history.py", "broker", HISTORY),
    ("broadcast/signed_history.py", "broker", HISTORY),
    ("broadcast/contract.py", "broker", FIFO),
    ("broadcast/acceptance.py", "subscriber", ALL),
    ("broadcast/chain_sender.py", "publisher", ("chain*",)),
    ("broadcast/sender.py", "publisher", FIFO),
    ("ordering/offer_sender.py", "publisher", TOTAL),
    ("ordering/*.py", "broker", TOTAL),
    ("cell/accusations.py", "broker", ALL),
    ("cell/serving/broker.py", "broker", FIFO),
    ("cell/serving/admission.py", "broker", ALL),
    ("cell/serving/membership.py", "broker", ALL),
    ("cell/serving/journal.py", "broker", FIFO),
    ("cell/serving/journal_writer.py", "broker", FIFO),
    ("cell/serving/recovering/holdings.py", "broker", RECOVERED),
    ("cell/serving/pace.py", "broker", FIFO),
    ("cell/serving/recovering/lacking.py", "broker", RECOVERED),
    ("cell/serving/recovering/recovery.py", "broker", RECOVERED),
    ("cell/subscribing/subscriber.py", "subscriber", ALL),
    ("cell/subscribing/fetching.py", "subscriber", ALL),
    ("cell/subscribing/interest.py", "subscriber", ALL),
    ("cell/subscribing/archive.py", "subscriber", ALL),
    ("cell/subscribing/receipts.py", "subscriber", ALL),
    ("cell/subscribing/recalling.py", "subscriber", TOTAL),
    ("cell/subscribing/excerpt.py", "subscriber", TOTAL),
    ("cell/refusals.py", "subscriber", ALL),
    ("cell/publishing/publisher.py", "publisher", ALL),
    ("cell/publishing/published_stream.py", "publisher", ALL),
)
#: Messages that only some policies use, wherever they are named.
MESSAGES: dict[str, tuple[str, ...]] = {
    "ChainRun": ("chain*",),
    "Publish": FIFO,
    "Echo": ("brb", *HISTORY),
    "Ready": ("brb", *HISTORY),
    "Missed": HISTORY,
    "Reached": FIFO,
    "Survey": RECOVERED,
    "Regain": RECOVERED,
    "Regained": RECOVERED,
}
TIMERS: dict[str, tuple[str, ...]] = {
    "TailHistory": HISTORY,
    "RetransmitRuns": ("brb", *HISTORY),
}
#: Effects that are states of their own because they are rare.
EFFECTS = (
    "DeliverGap", "Proven", "Recalled", "Refused", "Concluded", "Contradicted", "Accuse", "Adopt",
)  # fmt: skip
#: The start of a state's name, by the effect that shows it.
_VERBS = {"Drop": "drops:", "Suspect": "suspects:", "Persist": "persists"}
_KINDS = frozenset(kind.__name__ for kind in get_args(CellMessage))


class ProtocolState(msgspec.Struct, frozen=True, order=True):
    """An action of a role, or a message or event it handles, under a policy."""

    policy: str
    role: str
    what: str


@cache
def known_states() -> tuple[ProtocolState, ...]:
    """Every state that the code names."""
    found: dict[ProtocolState, None] = {}
    for pattern, role, policies in MODULES:
        named = {path for path, *_ in MODULES if path != pattern}
        paths = sorted(PACKAGE.glob(pattern))
        ensure(bool(paths), f"no module is called {pattern}: adapt the list")
        for path in paths:
            if path.relative_to(PACKAGE).as_posix() in named:
                continue  # the module has its own entry
            for what, under in _named_in(ast.parse(path.read_text(encoding="utf-8"))):
                for policy in _chosen(_chosen(POLICY_NAMES, policies), under):
                    found[ProtocolState(policy, role, what)] = None
    return tuple(sorted(found))


def _chosen(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    return [n for n in names if any(fnmatchcase(n, pattern) for pattern in patterns)]


def _named_in(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The states that a module names, each with patterns of the policies it belongs to."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="DropReason"), attr=name):
                yield f"drops: {DropReason[name].value}", ALL
            case ast.Attribute(value=ast.Name(id="Suspicion"), attr=name):
                yield f"suspects: {Suspicion[name].value}", ALL
            case ast.MatchClass(cls=ast.Name(id=name)) if name in _KINDS:
                yield f"takes {name}", MESSAGES.get(name, ALL)
            case ast.Dict(keys=keys):
                for key in keys:
                    if isinstance(key, ast.Name) and key.id in _KINDS:
                        yield f"takes {key.id}", MESSAGES.get(key.id, ALL)
            case ast.ClassDef(name=name, bases=[ast.Name(id="Timer")]):
                yield f"timer {name}", TIMERS.get(name, ALL)
            case ast.ClassDef(name=name, bases=[ast.Name(id=base)]) if base.endswith(
                "Record"
            ) and not name.endswith("Record"):
                yield f"persists {name}", ALL
                yield f"restores {name}", ALL
            case ast.Call(func=ast.Name(id=name)) if name in EFFECTS:
                yield f"says {name}", ALL


def states_of(transition: Transition) -> list[ProtocolState]:
    """States that a transition may show; those not in `known_states` do not exist."""
    kind, _, rest = transition.effect.partition(" ")
    event = transition.event
    found = [f"takes {event.partition('/')[0]}", f"timer {event}"]
    if event.startswith("Restored "):
        found.append("restores " + event.removeprefix("Restored "))
    if kind in EFFECTS:
        found.append(f"says {kind}")
    elif kind in _VERBS:
        found.append(f"{_VERBS[kind]} {rest}")
    return [ProtocolState(transition.policy, transition.role, what) for what in found]
