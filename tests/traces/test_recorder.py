"""What is noted of a node's doings, and what of it survives the node."""

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from quorumcast.broadcast.application import Deliver
from quorumcast.broadcast.messages import Ack, ChainRun, Matches, Publish
from quorumcast.cell.messages import Unsubscribe, Vote
from quorumcast.cell.tracing import CELL_NOTES
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, Digest, Lane, NodeId, Stream
from quorumcast.core.machine import Send
from quorumcast.core.message import Displaced
from quorumcast.crypto.session import encode_parcel
from quorumcast.ordering.messages import Offer
from quorumcast.traces.form import (
    COLUMNS,
    Header,
    Listening,
    place_for,
    read_header,
    run_of,
    write_header,
)
from quorumcast.traces.recorder import OLDEST_NS, TraceWriter, note_hooks

ALICE, BOB, B1, B2, B3 = map(NodeId, ("alice", "bob", "b1", "b2", "b3"))
STREAM = Stream(Channel("orders"), ALICE, 7)
TWO = bytes(64)


def rows(directory: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(directory.glob("*.parquet")) for row in read(path)]


def read(path: Path) -> list[dict[str, Any]]:
    table = pq.read_table(path)
    assert {field.name: str(field.type) for field in table.schema} == COLUMNS
    return list(table.to_pylist())


def noted(tmp_path: Path, me: NodeId, *effects: Send | Deliver) -> list[dict[str, Any]]:
    writer = TraceWriter(tmp_path / "trace.parquet", "a run", count(1000).__next__)
    recorder = writer.recorder("some role", me)
    for effect in effects:
        note_hooks(recorder, CELL_NOTES, me)[type(effect)](effect)
    writer.close()
    return rows(tmp_path)


def test_publications_of_a_run_are_a_row_each_for_every_peer(tmp_path: Path) -> None:
    found = noted(tmp_path, ALICE, Send((B1, B2), Publish(STREAM, 5, TWO), (b"a", b"b")))
    published = [row for row in found if row["kind"] == "published"]
    assert [(row["peer"], row["number"]) for row in published] == [
        ("b1", 5), ("b1", 6), ("b2", 5), ("b2", 6),
    ]  # fmt: skip
    first = published[0]
    assert (first["role"], first["node"], first["run"]) == ("some role", "alice", "a run")
    assert (first["channel"], first["publisher"], first["incarnation"]) == ("orders", "alice", 7)
    assert (first["lane"], first["place"], first["by_history"]) == (0, 0, False)


def test_what_is_to_be_ordered_is_published_as_well(tmp_path: Path) -> None:
    found = noted(tmp_path, ALICE, Send((B1,), Offer(STREAM, 1, bytes(32)), (b"a",)))
    assert [row["number"] for row in found if row["kind"] == "published"] == [1]


def test_resumed_stream_is_published_by_every_seat_and_passed_on_by_others(tmp_path: Path) -> None:
    publish = Send((B1,), Publish(STREAM, 1, bytes(32)), (b"a",))
    for me, kind in ((NodeId("alice#3"), "published"), (B2, "passed_on")):
        (row, *_) = noted(tmp_path / place(me, tmp_path), me, publish)
        assert row["kind"] == kind


def test_chain_tells_the_place_of_whoever_passes_it_on(tmp_path: Path) -> None:
    order = (B1, B2, B3)
    run = ChainRun(STREAM, 1, bytes(32), order, ())
    (row, *_) = noted(tmp_path / place("a", tmp_path), B2, Send((B3,), run))
    assert (row["kind"], row["place"]) == ("passed_on", 2)
    vote = Vote(STREAM, 1, bytes(32), order)
    (row, *_) = noted(tmp_path / place("b", tmp_path), B3, Send((BOB,), vote))
    assert (row["kind"], row["place"]) == ("forwarded", 3)


def test_results_are_noted_where_something_matches(tmp_path: Path) -> None:
    said = Matches(STREAM, 5, 9, b"id", (1, 2, 7), bytes(96))
    found = noted(tmp_path, B1, Send((BOB,), said, (b"a", b"b", b"c")))
    forwarded = [(row["number"], row["peer"]) for row in found if row["kind"] == "forwarded"]
    assert forwarded == [(6, "bob"), (7, "bob"), (12, "bob")]


def place(name: str, parent: Path) -> str:
    (parent / name).mkdir()
    return name


def test_acceptance_names_voters_size_and_whether_history_brought_it(tmp_path: Path) -> None:
    effect = Deliver(STREAM, 3, Digest(bytes(32)), b"12345", (B1, B2), by_history=True)
    (row,) = noted(tmp_path, BOB, effect)
    assert (row["kind"], row["number"], row["peer"]) == ("accepted", 3, "b1,b2")
    assert (row["by_history"], row["bytes"], row["lane"]) == (True, 5, int(Lane.DATA))


def test_messages_are_counted_by_type_and_peer_with_their_bytes(tmp_path: Path) -> None:
    publish = Publish(STREAM, 1, bytes(32))
    ack = Ack(STREAM, 1, 10)
    found = noted(
        tmp_path,
        B1,
        Send((B2, B3), publish, (b"hello",)),
        Send((B2,), publish, (b"hello",)),
        Send((ALICE,), ack),
    )
    sent = {(row["message"], row["peer"]): row for row in found if row["kind"] == "sent"}
    size = len(encode_parcel(publish)[0]) + 5
    counts = {key: (row["number"], row["bytes"]) for key, row in sent.items()}
    assert counts == {
        ("Publish", "b2"): (2, 2 * size),
        ("Publish", "b3"): (1, size),
        ("Ack", "alice"): (1, len(encode_parcel(ack)[0])),
    }


def test_messages_are_counted_by_channel_if_they_name_one(tmp_path: Path) -> None:
    news = Stream(Channel("news"), ALICE, 7)
    found = noted(
        tmp_path,
        ALICE,
        Send((B1,), Ack(STREAM, 1, 10)),
        Send((B1,), Ack(news, 1, 10)),
        Send((B1, B2), Unsubscribe(Channel("news"))),
        Send((B1,), Displaced()),
    )
    counts: Counter[tuple[str, str]] = Counter()
    for row in found:
        counts[row["message"], row["channel"]] += row["number"]
    assert counts == {
        ("Ack", "orders"): 1, ("Ack", "news"): 1, ("Unsubscribe", "news"): 2, ("Displaced", ""): 1,
    }  # fmt: skip


def test_kinds_lie_in_row_groups_of_their_own(tmp_path: Path) -> None:
    deliver = Deliver(STREAM, 1, Digest(bytes(32)), b"", ())
    noted(tmp_path, B1, deliver, Send((BOB,), Vote(STREAM, 1, bytes(32))), deliver)
    metadata = pq.ParquetFile(tmp_path / "trace.parquet").metadata
    column = list(COLUMNS).index("kind")
    groups = [metadata.row_group(i).column(column).statistics for i in range(3)]
    assert [(g.min, g.max, g.num_values) for g in groups] == [
        ("forwarded", "forwarded", 1), ("accepted", "accepted", 2), ("sent", "sent", 1),
    ]  # fmt: skip


def test_killed_process_leaves_whole_files_and_goes_on_beside_them(tmp_path: Path) -> None:
    times = iter(range(0, 100 * OLDEST_NS, OLDEST_NS // 2))
    vote = Send((BOB,), Vote(STREAM, 1, bytes(32)))
    path = tmp_path / "b1.parquet"
    killed = TraceWriter(path, clock=times.__next__)
    for _ in range(5):
        note_hooks(killed.recorder("broker", B1), CELL_NOTES, B1)[Send](vote)
    before = len([row for row in rows(tmp_path) if row["kind"] == "forwarded"])
    assert before >= 3  # what was older than a second
    again = TraceWriter(path, clock=times.__next__)
    note_hooks(again.recorder("broker", B1), CELL_NOTES, B1)[Send](vote)
    again.close()
    assert len([row for row in rows(tmp_path) if row["kind"] == "forwarded"]) == before + 1
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".parquet"]


def test_nothing_happened_is_an_empty_file(tmp_path: Path) -> None:
    assert noted(tmp_path, B1) == []
    assert (tmp_path / "trace.parquet").exists()


HEADER = Header(
    run="x", source="bench", version="1", system="ring", drawn={"nodes": 5},
    parameters={"speed": 0.5, "patience_ms": 100, "shape": "round", "fair": True},
    publishers=("alice",), listening=(Listening("bob", "orders", 7),),
)  # fmt: skip


def test_header_comes_back_as_it_was(tmp_path: Path) -> None:
    write_header(tmp_path, HEADER)
    assert read_header(tmp_path) == HEADER
    assert run_of(tmp_path) == "x"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, r"has no trace\.json: name a directory"),
        (b"{", r"cannot be read .*: trace that run again"),
        (b'{"run": 1}', r"cannot be read .*: trace that run again"),
        (b'{"format": 4}', r"cannot be read .*: trace that run again"),
        (b'{"format": 2, "policy": "ab"}', "has the format 2 and this version reads 4: trace that"),
    ],
)
def test_header_that_is_missing_broken_or_old_is_one_sentence(
    tmp_path: Path, text: bytes | None, sentence: str
) -> None:
    if text is not None:
        (tmp_path / "trace.json").write_bytes(text)
    with pytest.raises(UsageError, match=sentence):
        read_header(tmp_path)
    assert run_of(tmp_path) == ""


def test_next_trace_goes_where_none_is_yet(tmp_path: Path) -> None:
    assert place_for(tmp_path / "new") == tmp_path / "new"
    write_header(tmp_path / "new", HEADER)
    assert place_for(tmp_path / "new") == tmp_path / "new" / "run-2"
    (tmp_path / "new" / "run-2" / "b1.parquet").touch()
    assert place_for(tmp_path / "new") == tmp_path / "new" / "run-3"
