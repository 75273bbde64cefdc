"""Invalid arguments are refused with an error before anything else happens."""

import math
from typing import Any

import pytest
from tests.client.test_publishing import CHANNEL, Toy
from tests.runtime.world import PATIENCE_S, run

import quorumcast
from quorumcast.client.packing import Packer
from quorumcast.client.publishing import Publisher
from quorumcast.client.subscription import Subscription
from quorumcast.core.errors import UsageError
from quorumcast.core.publication import PAYLOAD


@pytest.mark.parametrize("name", ["max_batch", "buffer", "buffer_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, math.nan, "8", None, True])
def test_publisher_with_an_invalid_count_is_refused(name: str, value: Any) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match=f"{name} is .*: give a whole number of 1 or more"):
            Publisher(Toy(), CHANNEL, Packer(PAYLOAD), **{name: value})

    run(main())


@pytest.mark.parametrize("name", ["linger_ms", "timeout_s"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "8", True])
def test_publisher_with_an_invalid_time_is_refused(name: str, value: Any) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match=f"{name} is .*: give a finite number of 0 or more"):
            Publisher(Toy(), CHANNEL, Packer(PAYLOAD), **{name: value})

    run(main())


@pytest.mark.parametrize("name", ["queue", "queue_bytes"])
def test_subscription_with_an_invalid_count_is_refused(name: str) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match=f"{name} is 0.5: give a whole number"):
            Subscription(None, CHANNEL, (), None, **{name: 0.5})  # type: ignore[arg-type]

    run(main())


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
