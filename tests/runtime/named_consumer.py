"""A consumer in a process of its own, to be killed: prints what it gets, one line each.

    python -m tests.runtime.named_consumer DIRECTORY WHO CHANNEL NAME HOLD

Acknowledges nothing from the HOLD-th delivery on.
"""

import asyncio
import sys
from pathlib import Path

from quorumcast.client import connect


async def main(directory: str, who: str, channel: str, name: str, hold: str) -> None:
    cell = Path(directory)
    async with (
        await connect(cell / "manifest.json", cell / f"{who}.identity", timeout_s=120) as node,
        node.subscribe_as(channel, name, start=1, prefetch=4) as mine,
    ):
        count = 0
        async for delivery in mine:
            count += 1
            if count < int(hold):
                await delivery.ack()
                await mine.flush()
            print(delivery.position, delivery.attempt, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
