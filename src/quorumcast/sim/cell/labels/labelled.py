"""Labelled runs: simulated runs with the true status of every node.

A label follows from the deeds that a fault committed (`deeds`), never from observations:

- `plain`: if all correct nodes report its deeds truly, every explanation within the model contains
  the node (`faults.diagnosis`). The audit should name it.
- `word-against-word`: its deeds touch so few nodes that these may be the liars instead. No audit
  can name it without trusting single witnesses.
- `slight`: fewer than SLIGHT deeds of one kind towards any node.
- `late`: it only delayed messages, which is no different from distance.
- `idle`: its fault changed nothing, for example a leader's fault in a node that never led.
- `world`: it crashed for good, lost its disk or ran twice. Naming it is neither right nor wrong.
- `false-witness`: its only fault is a false log.
- `correct`: naming it is always wrong.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec

from quorumcast.core.ids import NodeId
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.tally import ABOUT_STREAMS, SLIGHT
from quorumcast.faults.diagnosis import Clause, Model, diagnose
from quorumcast.manifest.files import sign_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.sim.cell.cells import identity_of, operator_of
from quorumcast.sim.cell.harm import WORLD
from quorumcast.sim.cell.labels.deeds import Deed, DeedKey, Difference
from quorumcast.sim.cell.labels.observed import ObservedRun, perform_observed
from quorumcast.sim.cell.labels.slander import forgeries, slander
from quorumcast.sim.cell.plan import CellPlan
from quorumcast.sim.cell.scenario import draw
from quorumcast.watch.observation import DOCUMENT_COLUMNS, LABEL_COLUMNS, columns_of

#: One run in this many has only crashes or network faults.
WORLD_EVERY = 8
#: In one run in this many faulty nodes write false logs.
SLANDER_EVERY = 3

#: `members` changes the manifest, and the audit judges one epoch; `several` has no deed of its own.
_LEFT_OUT = ("members", "several")
_WORLD = tuple(name for name in WORLD if name not in _LEFT_OUT)
#: Labelled runs have no predicates, so that faults about predicates would do nothing.
_FAULTS = tuple(name for name, entry in CATALOGUE.items() if not entry.of_rows)


def adversary_of(seed: int) -> str:
    """Return the adversary of a run: every fault of the catalogue in turn, or one of WORLD."""
    turn, place = divmod(seed, WORLD_EVERY)
    if place == WORLD_EVERY - 1:
        return _WORLD[turn % len(_WORLD)]
    return _FAULTS[(turn * (WORLD_EVERY - 1) + place) % len(_FAULTS)]


def settled(manifest: Manifest) -> bool:
    """Whether no publisher can make correct brokers differ on any channel of a cell."""
    return not any(channel.policy.may_split for channel in manifest.channels)


def ideal_clauses(
    deeds: Mapping[DeedKey, int], differences: Mapping[Difference, int], *, is_settled: bool
) -> tuple[list[Clause], dict[NodeId, int]]:
    """Return the clauses of true reports, and each node's highest count of deeds towards one node.

    If two nodes report different versions of a publisher's message, one of the three lies.
    """
    per_pair: dict[tuple[NodeId, Clause, str], int] = {}
    for key, count in deeds.items():
        if key.deed is Deed.DELAYED:
            continue
        unsettled = (
            not is_settled
            and not key.history
            and key.message in ABOUT_STREAMS
            and key.deed in (Deed.ALTERED, Deed.DROPPED)
        )
        others = {key.towards, key.publisher if unsettled else "", key.before} - {""}
        pair = (key.node, frozenset({key.node, *others}), key.message)
        per_pair[pair] = per_pair.get(pair, 0) + count
    most: dict[NodeId, int] = {}
    clauses: list[Clause] = []
    for difference, count in differences.items():
        node = difference.node
        most[node] = max(count, most.get(node, 0))
        if count >= SLIGHT:
            witnesses = {node} if difference.signed else {node, difference.one, difference.other}
            clauses.append(frozenset(witnesses))
    for (node, clause, _), count in per_pair.items():
        most[node] = max(count, most.get(node, 0))
        if count >= SLIGHT:
            clauses.append(clause)
    return clauses, most


def statuses(
    run: ObservedRun, model: Model, false_witnesses: Mapping[NodeId, str]
) -> dict[NodeId, tuple[str, str]]:
    """Return the fault and the label of every faulty node."""
    clauses, most = ideal_clauses(run.deeds, run.differences, is_settled=settled(run.manifest))
    forced = diagnose(clauses, model).named
    found = {}
    for node, fault in run.faulty.items():
        if fault not in CATALOGUE:
            status = "world"
        elif node not in most:
            status = "late" if any(key.node == node for key in run.deeds) else "idle"
        elif most[node] < SLIGHT:
            status = "slight"
        else:
            status = "plain" if node in forced else "word-against-word"
        found[node] = (fault, status)
    for node in false_witnesses:
        found.setdefault(node, ("", "false-witness"))
    return found


def labelled_run(seed: int) -> dict[str, dict[str, list[object]]]:
    """Simulate one run; return its observations, documents, manifest and labels as columns."""
    # One fault at a time: a label describes the deeds of one node.
    plan = draw(seed, None, adversary_of(seed), extras=False)
    run = perform_observed(plan)
    name = f"sim-{seed}-{plan.policy.name}-{plan.adversary}"
    liars = _false_witnesses(seed, plan, run)
    observations = [row for row in run.observations if row.observer not in liars]
    documents = [pair for pair in run.documents if pair[0] not in liars]
    rng = random.Random(f"slander {seed}")
    everyone = (*run.manifest.broker_ids, *plan.publishers, *plan.subscribers)
    correct = [node for node in everyone if node not in run.faulty and node not in liars]
    # All liars accuse the same victims, which is the most dangerous lie.
    victims = rng.sample(correct, min(len(correct), rng.choice((1, 1, 2, 3))))
    for liar, role in liars.items():
        observations += slander(rng, liar, role, victims, run.outcome.simulated_ms)
        keyring = run.manifest.keyring(identity_of(liar))
        documents += [(liar, d) for d in forgeries(keyring, run.manifest.epoch, victims)]
    model = Model(run.manifest.broker_ids, run.manifest.f)
    labels = statuses(run, model, liars)
    signed = msgspec.json.encode(sign_manifest(run.manifest, operator_of()))
    rows = [(name, observer, d.kind, d.subject, d.data) for observer, d in documents]
    return {
        "observations": columns_of(name, observations),
        "documents": _columns(DOCUMENT_COLUMNS, rows),
        "cells": {"run": [name], "data": [signed]},
        "labels": _columns(LABEL_COLUMNS, _label_rows(name, plan, run, everyone, labels)),
    }


def _false_witnesses(seed: int, plan: CellPlan, run: ObservedRun) -> dict[NodeId, str]:
    """Return the nodes that write a false log, and their roles."""
    if seed % SLANDER_EVERY:
        return {}
    roles = dict.fromkeys(run.manifest.broker_ids, "broker")
    roles |= dict.fromkeys(plan.publishers, "publisher")
    roles |= dict.fromkeys(plan.subscribers, "subscriber")
    if run.faulty:
        return {node: roles[node] for node in run.faulty if node in roles}
    rng = random.Random(f"witness {plan.seed}")
    liar = rng.choice(sorted(roles))
    return {liar: roles[liar]}


def _label_rows(
    name: str,
    plan: CellPlan,
    run: ObservedRun,
    everyone: tuple[NodeId, ...],
    labels: Mapping[NodeId, tuple[str, str]],
) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for node in everyone:
        fault, status = labels.get(node, ("", "correct"))
        done = [(key, c) for key, c in run.deeds.items() if key.node == node]
        towards = ",".join(sorted({key.towards for key, _ in done}))
        run_columns = (name, "simulator", plan.policy.name, plan.adversary)
        count = sum(count for _, count in done)
        rows.append((*run_columns, node, fault, status, count, towards))
    return rows


def _columns(
    names: Mapping[str, str], rows: Sequence[tuple[object, ...]]
) -> dict[str, list[object]]:
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}
