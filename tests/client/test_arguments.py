"""Invalid arguments are refused with an error before anything else happens."""

import inspect
import math
import re
from pathlib import Path
from typing import Any

import pytest
from tests.client.test_publishing import CHANNEL
from tests.runtime.world import PATIENCE_S, run

import quorumcast
from quorumcast.client import api
from quorumcast.client.arguments import check_start
from quorumcast.client.node import Node
from quorumcast.client.options import (
    NamedSubscriptionOptions,
    PublisherOptions,
    SubscriptionOptions,
    meanings,
)
from quorumcast.client.sync import SyncNode
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy

ROOT = Path(__file__).parents[2]
METHODS = {
    "publisher": PublisherOptions,
    "subscribe": SubscriptionOptions,
    "subscribe_as": NamedSubscriptionOptions,
}


@pytest.mark.parametrize(("method", "options"), METHODS.items())
def test_options_of_both_clients_are_those_declared_and_documented(
    method: str, options: type[Any]
) -> None:
    parameters = inspect.signature(options).parameters
    for client in (Node, SyncNode):
        taken = list(inspect.signature(getattr(client, method)).parameters)
        assert taken == ["self", *parameters]
        assert all(text in getattr(client, method).__doc__ for text in meanings(options).values())
    page = (ROOT / "docs" / "client.md").read_text()
    options_of = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert [name for name in options_of if not re.search(rf"[`( ]{name}[`=]", page)] == []


@pytest.mark.parametrize("name", ["max_batch", "buffer", "buffer_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, math.nan, "8", None, True])
def test_publisher_with_an_invalid_count_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is .*: give a whole number of 1 or more"):
        PublisherOptions(CHANNEL, **{name: value})


@pytest.mark.parametrize("name", ["linger_ms", "timeout_s"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "8", True])
def test_publisher_with_an_invalid_time_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is .*: give a finite number of 0 or more"):
        PublisherOptions(CHANNEL, **{name: value})


@pytest.mark.parametrize("name", ["queue", "queue_bytes"])
def test_subscription_with_an_invalid_count_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is 0.5: give a whole number"):
        SubscriptionOptions(CHANNEL, **{name: 0.5})  # type: ignore[arg-type]


def test_connect_with_an_invalid_timeout_is_refused() -> None:
    with pytest.raises(UsageError, match="timeout_s is nan: give a finite number"):
        run(quorumcast.connect("manifest.json", "alice.identity", timeout_s=math.nan))


def test_sync_call_with_an_invalid_timeout_is_refused_before_it_runs(
    quorumcast_sync_cell: Any,
) -> None:
    alice = quorumcast_sync_cell.connect("alice")
    with alice.publisher("events") as outbox:
        with pytest.raises(UsageError, match="timeout_s is nan: give a finite number"):
            outbox.publish(b"x", timeout_s=math.nan)
        outbox.publish(b"y", timeout_s=PATIENCE_S)


def test_package_offers_the_names_of_the_client() -> None:
    """It has a list of its own, so that `from quorumcast import cli` does not import the client."""
    assert {*quorumcast.__all__} == {*api.__all__, "__version__", "sync"}


@pytest.mark.parametrize("start", [0, -1, True, 1.5, "yesterday", 2**61 + 1])
def test_start_that_is_no_place_in_a_channel_is_refused(start: Any) -> None:
    entry = ChannelEntry(Channel("trades"), Policy.named("total"))
    with pytest.raises(UsageError, match="give 'latest', 'earliest', a time, or a position"):
        check_start(start, [entry])
    assert check_start(2**61, [entry]) == (2**61, 0)
