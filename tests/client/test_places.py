"""Clients beyond the limit of a channel are refused, and admitted once there is room."""

import pytest
from tests.support.leaping import leap

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import Limits
from quorumcast.manifest.policy import Policy
from quorumcast.testing import MemoryCell


@pytest.mark.parametrize("name", ["ab+history", "total"])
def test_client_beyond_the_limit_is_refused_and_admitted_later_in_the_same_process(
    name: str,
) -> None:
    policy = Policy.named(name, limits=Limits(publishers=1, subscribers=1))

    async def scenario() -> list[bytes]:
        async with MemoryCell(channels={"orders": policy}) as cell:
            alice, bob, carol = [await cell.connect(n) for n in ("alice", "bob", "carol")]
            async with alice.publisher("orders") as mine, bob.subscribe("orders"):
                await mine.publish(b"first")
                with pytest.raises(UsageError, match="has its 1 subscribers already"):
                    async with carol.subscribe("orders"):
                        pass
                with pytest.raises(UsageError, match="has its 1 publishers already"):
                    async with carol.publisher("orders") as hers:
                        await hers.publish(b"refused")
                await mine.publish(b"second")
            await bob.close()
            await alice.close()
            async with carol.subscribe("orders", start="earliest") as events:
                async with carol.publisher("orders") as hers:
                    await hers.publish(b"third")
                found: list[bytes] = []
                async for event in events:
                    found.append(event.payload)
                    if event.payload == b"third":
                        return found
        raise AssertionError

    found = leap(scenario())
    assert [payload for payload in found if payload != b"refused"] == [
        b"first",
        b"second",
        b"third",
    ]
