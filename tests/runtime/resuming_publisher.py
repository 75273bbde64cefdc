"""A publisher for tests that kill it: publishes the same publications in every life."""

import sys
from datetime import UTC, datetime

import quorumcast
from quorumcast import Resumption

PUBLICATIONS = 300
RESUME = Resumption("import", 7, datetime(2026, 11, 15, tzinfo=UTC))


async def main(manifest: str, identity: str, seat: int, pause_after: int) -> None:
    async with await quorumcast.connect(manifest, identity, seat=seat, timeout_s=120) as node:
        async with node.publisher("orders", resume=RESUME, timeout_s=120) as out:
            for number in range(PUBLICATIONS):
                out.post(b"%d" % number)
                if number == pause_after:
                    await out.flush()
                    print("half way", flush=True)
        print("done", flush=True)


if __name__ == "__main__":
    quorumcast.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
