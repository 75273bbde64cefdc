"""Labelled runs: what faulty nodes did, and whether anybody could tell.

The label of a node comes from what was really done (`deeds`), never from what an observer noted or
an audit concluded:

- `plain`: it did enough, towards enough correct nodes, to be named: given true reports of its deeds
  by all correct nodes, every explanation within the model contains it (`faults.diagnosis`).
- `word-against-word`: it did, but towards so few that those few might as well be the liars. No
  audit can name it without trusting single witnesses. (A broker that ignores one client; a
  publisher that skips f brokers.)
- `slight`: fewer than SLIGHT deeds of one kind towards anybody.
- `late`: it only put things off. Nobody can tell that from distance.
- `idle`: a fault was set and changed nothing (a leader's fault in a node that never led).
- `world`: it crashed for good, lost its disk or ran twice. It is faulty by the model and did not
  lie; naming it is neither right nor wrong.
- `false-witness`: it did nothing but write a false log.
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

#: Of so many runs one is without a fault of the catalogue, for precision.
WORLD_EVERY = 8
#: In one of so many runs faulty nodes write false logs.
SLANDER_EVERY = 3

#: Members change in the first one, and the logs of several epochs are another matter; the second
#: one has no deed of its own.
_LEFT_OUT = ("members", "several")
_WORLD = tuple(name for name in WORLD if name not in _LEFT_OUT)
_FAULTS = tuple(CATALOGUE)


def adversary_of(seed: int) -> str:
    """Every fault in turn, and now and then something that the world does."""
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
    """What true reports of these deeds say, and the most that each node did towards one other.

    Of two nodes that report different words of a publisher, one lies, or the publisher does.
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
    """The fault and the status of every faulty node."""
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
    """One simulated run: its observations, documents, manifest and labels, as columns."""
    # One fault at a time: a label says what one node did.
    plan = draw(seed, None, adversary_of(seed), beside=False)
    run = perform_observed(plan)
    name = f"sim-{seed}-{plan.policy.name}-{plan.adversary}"
    liars = _false_witnesses(seed, plan, run)
    observations = [row for row in run.observations if row.observer not in liars]
    documents = [pair for pair in run.documents if pair[0] not in liars]
    rng = random.Random(f"slander {seed}")
    everyone = (*run.manifest.broker_ids, *plan.publishers, *plan.subscribers)
    correct = [node for node in everyone if node not in run.faulty and node not in liars]
    # They accuse the same ones: the more dangerous lie.
    victims = rng.sample(correct, min(len(correct), rng.choice((1, 1, 2, 3))))
    for liar, role in liars.items():
        observations += slander(rng, liar, role, victims, run.outcome.simulated_ms)
        keyring = run.manifest.keyring(identity_of(len(run.manifest.brokers), liar))
        documents += [(liar, d) for d in forgeries(keyring, run.manifest.epoch, victims)]
    model = Model(run.manifest.broker_ids, run.manifest.f)
    labels = statuses(run, model, liars)
    signed = msgspec.json.encode(
        sign_manifest(run.manifest, operator_of(len(run.manifest.brokers)))
    )
    rows = [(name, who, d.kind, d.subject, d.data) for who, d in documents]
    return {
        "observations": columns_of(name, observations),
        "documents": _columns(DOCUMENT_COLUMNS, rows),
        "cells": {"run": [name], "data": [signed]},
        "labels": _columns(LABEL_COLUMNS, _label_rows(name, plan, run, everyone, labels)),
    }


def _false_witnesses(seed: int, plan: CellPlan, run: ObservedRun) -> dict[NodeId, str]:
    """Who writes a false log, and in which role."""
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
        towards = sorted({key.towards for key, _ in done})
        rows.append(
            (
                name,
                "simulator",
                plan.policy.name,
                plan.adversary,
                node,
                fault,
                status,
                sum(count for _, count in done),
                ",".join(towards),
            )
        )
    return rows


def _columns(
    names: Mapping[str, str], rows: Sequence[tuple[object, ...]]
) -> dict[str, list[object]]:
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}
