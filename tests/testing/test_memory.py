"""What users get for their own tests."""

import time

import pytest
from tests.runtime.world import PATIENCE_S, run

from quorumcast.core.errors import UsageError
from quorumcast.testing import (
    MemoryCell,
    SyncMemoryCell,
    make_client_honest,
    make_client_lie,
)


def test_memory_cell_starts_in_milliseconds() -> None:
    async def main() -> float:
        MemoryCell()  # imports and caches
        started = time.thread_time()  # others may have the machine meanwhile
        async with MemoryCell() as cell:
            await cell.connect("alice")
            return time.thread_time() - started

    assert run(main()) < 0.5  # a few milliseconds


def test_memory_cell_at_most_f_brokers_lie() -> None:
    async def main() -> None:
        async with MemoryCell() as cell:
            cell.make_lie("broker-1", "silent")
            cell.make_lie("broker-1", "slow")
            with pytest.raises(UsageError, match="tolerates f=1"):
                cell.make_lie("broker-2")
            cell.make_honest("broker-1")
            with pytest.raises(UsageError, match="'gaps' is a publisher's fault; a broker can"):
                cell.make_lie("broker-2", "gaps")
            cell.make_lie("broker-2")
            with pytest.raises(UsageError, match="no running broker 'broker-9'"):
                cell.make_lie("broker-9")
            for reach in (cell.cut, cell.heal):
                with pytest.raises(UsageError, match="there is no node 'mallory' here; there are"):
                    reach("mallory")
            with pytest.raises(UsageError, match="no client 'mallory'"):
                await cell.connect("mallory")

    run(main())


def test_fixture_cell_carries_events(quorumcast_cell: MemoryCell) -> None:
    async def main() -> None:
        async with quorumcast_cell as cell:
            alice, bob = await cell.connect("alice"), await cell.connect("bob")
            async with bob.subscribe("events") as sub, alice.publisher("events") as pub:
                await pub.publish(b"hello")
                assert (await anext(sub)).payload == b"hello"

    run(main())


def test_fixture_lying_cell_tells_who_lies(quorumcast_lying_cell: MemoryCell) -> None:
    async def main() -> None:
        async with quorumcast_lying_cell as cell:
            alice, bob = await cell.connect("alice"), await cell.connect("bob")
            async with bob.subscribe("events") as sub, alice.publisher("events") as pub:
                for i in range(5):
                    await pub.publish(b"%d" % i)
                assert [(await anext(sub)).payload for _ in range(5)] == [
                    b"%d" % i for i in range(5)
                ]
                assert set(bob.suspicions) <= {"broker-1"}

    run(main())


def test_fixture_sync_cell_publishes_and_iterates(quorumcast_sync_cell: SyncMemoryCell) -> None:
    alice, bob = quorumcast_sync_cell.connect("alice"), quorumcast_sync_cell.connect("bob")
    with bob.subscribe("events") as sub, alice.publisher("events") as pub:
        pub.publish(b"first")
        for i in range(1000):
            pub.post(b"%d" % i)
        pub.flush(PATIENCE_S)
        assert sub.next(PATIENCE_S).payload == b"first"
        got = [sub.next(PATIENCE_S).payload for _ in range(1000)]
        assert got == [b"%d" % i for i in range(1000)]
        with pytest.raises(TimeoutError):
            sub.next(0.05)
        pub.publish(b"receipt please")
        event = sub.next(PATIENCE_S)
        assert sub.receipt(event).number == event.number
        with pytest.raises(UsageError, match="takes bytes, not str"):
            pub.post("text")  # type: ignore[arg-type]
    assert alice.suspicions == {}
    assert alice.evidence == []


def test_sync_client_lies_until_it_is_made_honest() -> None:
    with SyncMemoryCell(channels={"events": "ab"}) as cell:
        alice, bob = cell.connect("alice"), cell.connect("bob")
        make_client_lie(alice, "gaps")
        (fault,) = alice.faults("publisher")
        assert fault.name == "gaps"
        with bob.subscribe("events") as sub, alice.publisher("events") as pub:
            make_client_honest(alice)
            assert alice.faults("publisher") == ()
            pub.publish(b"the truth", PATIENCE_S)
            assert sub.next(PATIENCE_S).payload == b"the truth"


def test_sync_cell_cuts_off_and_misleads_brokers_like_the_other() -> None:
    with SyncMemoryCell(channels={"events": "ab"}, liars={"broker-1": "silent"}) as cell:
        alice, bob = cell.connect("alice"), cell.connect("bob")
        with bob.subscribe("events") as sub, alice.publisher("events") as pub:
            pub.publish(b"withheld by one", PATIENCE_S)
            assert "broker-1" not in sub.next(PATIENCE_S).votes
            cell.make_honest("broker-1")
            cell.make_lie("broker-1", "censor-node", victims=["bob"])
            pub.publish(b"censored by one", PATIENCE_S)
            assert "broker-1" not in sub.next(PATIENCE_S).votes
            cell.make_honest("broker-1")
            cell.cut("broker-2")
            pub.publish(b"unknown to one", PATIENCE_S)
            assert "broker-2" not in sub.next(PATIENCE_S).votes
            cell.heal("broker-2")
            for _ in range(2):
                pub.publish(b"known to all", PATIENCE_S)
            assert sub.next(PATIENCE_S).payload == b"known to all"


def test_sync_post_more_than_fits_waits_with_ready() -> None:
    with SyncMemoryCell(channels={"events": "ab"}) as cell:
        alice, bob = cell.connect("alice"), cell.connect("bob")
        with bob.subscribe("events") as sub, alice.publisher("events", buffer=100) as pub:
            for i in range(5000):
                pub.post(b"%d" % i)
                if i % 500 == 0:
                    pub.ready()
            pub.flush(PATIENCE_S)
            assert [sub.next(PATIENCE_S).payload for _ in range(5000)] == [
                b"%d" % i for i in range(5000)
            ]
