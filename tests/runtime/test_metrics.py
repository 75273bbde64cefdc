"""What a broker shows Prometheus and orchestrators: labels, channels, lag, latency, readiness."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.runtime.world import alice_and_bob, eventually, run, until
from tests.support.cell_network import CellNetwork
from tests.support.cells import (
    ALICE,
    B1,
    B2,
    BOB,
    ORDERS,
    STREAM,
    T0,
    Cell,
    bodies,
    limited,
)
from tests.support.cells import (
    publish as published,
)
from tests.support.rows import COLUMNS, rows_body

from quorumcast.broadcast.application import Submit
from quorumcast.broadcast.messages import Cursor
from quorumcast.cell.messages import Subscribe
from quorumcast.cell.serving.audience import REPLAYS_MS
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.sequencers import LogStatus
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Receive
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.broker.metrics import (
    Collector,
    by_container,
    channel_metrics,
    exposition,
)
from quorumcast.runtime.telemetry import LATENCIES_S, Histogram, Telemetry
from quorumcast.testing import LocalCluster

pytestmark = pytest.mark.runtime

CHANNELS = {"events": "ab+history", "ordered": "total"}
Series = tuple[str, tuple[tuple[str, str], ...]]
Samples = dict[Series, float]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(channels=CHANNELS) as cluster:
        cluster.wait_for_links()
        yield cluster


def samples(cluster: LocalCluster, broker: str = "broker-1") -> Samples:
    """Every sample by name and labels."""
    return parsed(cluster.metrics(broker))


def parsed(page: str) -> Samples:
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(page)
        for one in family.samples
    }


def page_of(manifest: Manifest, machine: Broker, logs: dict[str, LogStatus]) -> Samples:
    """What the page of a broker without a process shows of its machine."""
    channels = channel_metrics(manifest, machine)
    sizes, waits = machine.sizes(), machine.catching_up()
    collector = Collector(Telemetry(), 1, {}, channels, logs, sizes, {}, None, waits, [])
    return parsed(exposition(collector).decode())


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((f"quorumcast_{name}", tuple(sorted(labels.items()))))


def publish(cluster: LocalCluster, channel: str, *payloads: bytes) -> set[Series]:
    """Publish as a new life of alice until bob has it all; the series of all brokers meanwhile."""

    def lag() -> float | None:
        return value(samples(cluster), "subscriber_lag", channel=channel, subscriber="bob")

    async def main() -> set[Series]:
        async with (
            alice_and_bob(cluster) as (alice, bob),
            bob.subscribe(channel) as sub,
            alice.publisher(channel) as pub,
        ):
            for payload in payloads:
                await pub.publish(payload)
            await pub.flush()
            for _ in payloads:
                await anext(sub)
            await until(lambda: lag() == 0)  # brokers know of it while it is there
            return {one for broker in cluster.brokers for one in samples(cluster, broker)}

    return run(main())


def page(cluster: LocalCluster, path: str) -> int:
    try:
        with urllib.request.urlopen(cluster.status_url("broker-1") + path) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("channel", CHANNELS)
def test_metrics_of_a_channel_count_its_publications(cluster: LocalCluster, channel: str) -> None:
    publish(cluster, channel, b"a" * 1000, b"b" * 1000, b"c" * 1000)

    def counted() -> bool:
        found = samples(cluster)
        publications = value(found, "channel_publications_total", channel=channel) or 0
        events = value(found, "channel_sampled_events_per_publication", channel=channel) or 0
        size = value(found, "channel_bytes_total", channel=channel) or 0
        return publications * events == 3 and 3000 < size < 6000

    assert eventually(counted)
    # Not every broker sends contents to the subscriber, but one does.
    votes = [
        value(samples(cluster, broker), "vote_latency_seconds_count", channel=channel)
        for broker in cluster.brokers
    ]
    assert sum(count or 0 for count in votes) > 0


#: Their labels are nodes of the manifest and reasons, a few of which turn up now and then.
CONDUCT = ("quorumcast_drops_total", "quorumcast_suspicions_total")


@pytest.mark.parametrize("channel", CHANNELS)
def test_metrics_have_no_series_that_comes_with_lives_of_publishers(
    cluster: LocalCluster, channel: str
) -> None:
    known = publish(cluster, channel, b"x") | publish(cluster, channel, b"x")
    for _ in range(3):
        new = publish(cluster, channel, b"x") - known
        assert not {one for one in new if one[0] not in CONDUCT}
        assert not [label for _, labels in new for _, label in labels if "@" in label]


def test_metrics_show_how_far_a_subscriber_is_behind_by_its_last_seat() -> None:
    cell = Cell(limited("ab", replay=3))
    made = cell.broker()

    def lag() -> float | None:
        found = page_of(cell.manifest, made, {})
        return value(found, "subscriber_lag", channel=ORDERS, subscriber=BOB)

    def subscribe(reader: NodeId, number: int, now: Millis) -> None:
        asked = Subscribe(ORDERS, (Cursor(STREAM, number),), bodies=True)
        made.handle(Receive(reader, asked), now)

    made.handle(published(1, *bodies(1, 10)), T0)
    assert lag() is None
    subscribe(BOB, 1, T0)
    assert lag() == 7
    subscribe(NodeId(f"{BOB}#2"), 3, T0)
    subscribe(BOB, 4, T0)
    assert lag() == 5
    for seat in (BOB, NodeId(f"{BOB}#2")):
        subscribe(seat, 8, Millis(REPLAYS_MS))
    assert lag() == 0


def test_metrics_show_predicates_and_what_they_select() -> None:
    cell = Cell(limited("ab"), schema=COLUMNS)
    made = cell.broker()
    made.handle(Receive(BOB, Subscribe(ORDERS, (), True, where=("price < 10", "price = 15"))), T0)
    for number, prices in enumerate([(5, 20, 30, 40), (1, 2), (20,), (15, 16, 17, 18)], 1):
        made.handle(published(number, rows_body(prices)), T0)
    found = page_of(cell.manifest, made, {})
    assert {
        name: value(found, f"filtered_{name}", channel=ORDERS)
        for name in (
            *("predicates", "subscribers", "rows_looked_at_total", "rows_sent_total"),
            *("cuts_total", "whole_total"),
        )
    } == {
        "predicates": 2,
        "subscribers": 1,
        "rows_looked_at_total": 11,
        "rows_sent_total": 4,
        "cuts_total": 2,
        "whole_total": 1,
    }


PROGRESS = ("regency", "decided", "executed", "checkpoint")


def test_metrics_of_a_log_move_with_it() -> None:
    cell = Cell(limited("total", checkpoint=2))
    network = CellNetwork(cell, lambda now, node, effect: None, lambda *words: None)
    for name in cell.manifest.broker_ids:
        network.start_broker(name)
    network.enter(ALICE, cell.publisher())
    network.run(1000)

    def progress() -> tuple[object, ...]:
        """Who leads, and the four figures."""
        machine = network.machines[B2]
        assert isinstance(machine, Broker)
        found = page_of(cell.manifest, machine, machine.logs())
        leaders = [dict(labels)["leader"] for name, labels in found if name.endswith("log_leader")]
        return *leaders, *(value(found, f"log_{name}", log="byzantine") for name in PROGRESS)

    def publish_each(*payloads: bytes) -> None:
        for payload in payloads:
            network.happen(ALICE, Submit(ORDERS, (payload,)))
            network.run(100)

    assert progress() == ("b1", 0, 0, 0, 0)
    publish_each(b"1")
    assert progress() == ("b1", 0, 1, 1, 0)
    publish_each(b"2", b"3")
    assert progress() == ("b1", 0, 3, 3, 2)
    network.stop(B1)
    publish_each(b"4")
    network.run(3000)
    assert progress() == ("b2", 1, 4, 4, 4)


def test_metrics_of_a_log_are_not_confused() -> None:
    cell = Cell(limited("total"))
    status = LogStatus(leader=B2, regency=3, decided=9, executed=8, checkpoint=4, forgotten=2)
    found = page_of(cell.manifest, cell.broker(), {"byzantine": status})
    for name in PROGRESS:
        assert value(found, f"log_{name}", log="byzantine") == getattr(status, name)


def test_metrics_tell_leader_epoch_version_and_who_is_missing(cluster: LocalCluster) -> None:
    found = samples(cluster)
    assert value(found, "epoch") == 1
    leader = cluster.status("broker-1")["logs"]["byzantine"]["leader"]
    assert value(found, "log_leader", log="byzantine", leader=leader) == 1
    assert [name for name, _ in found if name == "quorumcast_build_info"]
    assert value(found, "peer_up", role="broker", peer="broker-2") == 1
    assert value(found, "peer_up", role="client", peer="alice") == 0
    assert (page(cluster, "/healthz"), page(cluster, "/readyz")) == (200, 200)
    cluster.stop_broker("broker-2")
    try:
        assert eventually(
            lambda: value(samples(cluster), "peer_up", role="broker", peer="broker-2") == 0
        )
        cluster.stop_broker("broker-3")
        assert eventually(lambda: page(cluster, "/readyz") == 503)
        assert page(cluster, "/healthz") == 200
    finally:
        cluster.start_broker("broker-2")
        cluster.start_broker("broker-3")
    assert eventually(lambda: page(cluster, "/readyz") == 200)


def test_sizes_of_all_streams_are_added_up() -> None:
    sizes = {"streams": 2, "byzantine/offers": 1, "a/b/alice@4/held": 3, "x/bob@5/held": 4}
    assert by_container(sizes) == {"streams": 2, "byzantine/offers": 1, "stream/held": 7}


def test_histogram_counts_by_bucket() -> None:
    histogram = Histogram()
    for seconds in (-1.0, LATENCIES_S[0], LATENCIES_S[0] + 1e-9, LATENCIES_S[-1] + 1):
        histogram.observe(seconds)
    assert histogram.counts == [2, 1, *[0] * (len(LATENCIES_S) - 2), 1]
    assert 11 < histogram.sum_s < 12
