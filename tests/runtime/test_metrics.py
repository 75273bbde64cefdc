"""What a broker shows Prometheus and orchestrators: labels, channels, lag, latency, readiness."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.runtime.world import alice_and_bob, eventually, run, until

from quorumcast.runtime.broker.metrics import by_container
from quorumcast.runtime.telemetry import LATENCIES_S, Histogram
from quorumcast.testing import LocalCluster

pytestmark = pytest.mark.runtime

CHANNELS = {"events": "ab+history", "ordered": "total"}
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(channels=CHANNELS) as cluster:
        cluster.wait_for_links()
        yield cluster


def samples(cluster: LocalCluster, broker: str = "broker-1") -> Samples:
    """Every sample by name and labels."""
    families = text_string_to_metric_families(cluster.metrics(broker))
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in families
        for one in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((f"quorumcast_{name}", tuple(sorted(labels.items()))))


def publish(cluster: LocalCluster, channel: str, *payloads: bytes) -> None:
    """Publish as a new life of alice, and wait until bob has it all."""

    def lag() -> float | None:
        return value(samples(cluster), "subscriber_lag", channel=channel, subscriber="bob")

    async def main() -> None:
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

    run(main())


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


def test_metrics_have_no_label_that_grows_with_lives_of_publishers(cluster: LocalCluster) -> None:
    publish(cluster, "events", b"x")
    before = samples(cluster).keys()
    for _ in range(3):
        publish(cluster, "events", b"x")
    new = {name for name, _ in samples(cluster).keys() - before}
    assert not {name for name in new if name.endswith("container_size")}


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
