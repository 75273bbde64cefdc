"""The audit of content subscriptions: a broker that omits is named, and nobody else, without Spark.

Two subscribers and four brokers are observed; one broker lies about results, or nobody does.
"""

from __future__ import annotations

import pytest
from tests.cell.test_content import CHEAP, Rows
from tests.cell.test_content_liars import OF_RESULTS, TRAFFIC, lying
from tests.support.cells import B4, BOB, CAROL, ORDERS

from quorumcast.broadcast.application import Select
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Effect, Event
from quorumcast.faults.diagnosis import Model
from quorumcast.pipeline.audit.charges import Case, Feature
from quorumcast.pipeline.audit.verdicts import RunJudgement, judge
from quorumcast.watch.observation import Observation
from quorumcast.watch.observer import Observer

_SHARED = (
    "observer",
    "role",
    "accused",
    "kind",
    "reason",
    "message",
    "channel",
    "publisher",
    "lane",
)


class Audited:
    """Observers of the subscribers in a cell, and the verdict on what they noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
        self.rows = Rows(policy)
        network, manifest = self.rows.network, self.rows.cell.manifest
        self._observers = {node: Observer(manifest, node, "subscriber") for node in (BOB, CAROL)}
        happen = network.happen

        def watched(node: NodeId, event: Event) -> None:
            if node in self._observers:
                self._observers[node].on_event(event, Millis(network.now))
            happen(node, event)

        def seen(now: int, node: NodeId, effect: Effect) -> None:
            if node in self._observers:
                self._observers[node].on_effect(effect, Millis(now))

        monkeypatch.setattr(network, "happen", watched)
        monkeypatch.setattr(network, "_watch", seen)

    def verdict(self) -> RunJudgement:
        """Who is named."""
        manifest, now = self.rows.cell.manifest, Millis(self.rows.network.now)
        noted: list[Observation] = []
        for observer in self._observers.values():
            observer.close(now)
            noted += observer.notes.take(all_=True)
        features = [_feature(row) for row in noted]
        model = Model(manifest.broker_ids, manifest.f)
        return judge(Case(manifest, features), model, [])


def _feature(row: Observation) -> Feature:
    shared = {name: getattr(row, name) for name in _SHARED}
    slot, bucket = row.t_ms // 2000, row.number if row.kind == "came" else 0
    return Feature(
        **shared, slot=slot, bucket=bucket, count=row.count, t_ms=row.t_ms, until_ms=row.until_ms
    )


def carry(audited: Audited, seconds: int) -> None:
    """Bob and carol want rows; they change what they want in between."""
    rows = audited.rows
    rows.join(BOB, *CHEAP)
    rows.join(CAROL, "price < 6")
    for second in range(seconds):
        rows.publish(*TRAFFIC, for_ms=1000)
        if second == seconds // 3:
            rows.network.happen(BOB, Select(ORDERS, ("price < 12",)))
            rows.network.happen(CAROL, Select(ORDERS, ("price < 8",)))


@pytest.mark.parametrize("policy", ["brb", "total"])
@pytest.mark.parametrize("fault", OF_RESULTS)
def test_broker_that_lies_about_results_is_named(
    fault: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited = Audited(monkeypatch, policy)
    lying(audited.rows, B4, fault)
    carry(audited, 30 if fault == "stale-predicate" else 6)
    found = audited.verdict()
    assert found.named == (B4,)
    if fault == "omit-matches":
        assert any("nothing matches" in charge.why for charge in found.charges)


@pytest.mark.parametrize("policy", ["ab", "ab+history", "brb", "total"])
def test_nobody_is_charged_where_nobody_lies(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    audited = Audited(monkeypatch, policy)
    carry(audited, 12)
    found = audited.verdict()
    assert found.charges == ()
    assert found.named == ()
