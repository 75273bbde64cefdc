"""The plain twin of content subscriptions: results on publications, predicate by predicate.

It knows no index, no groups and no runs: each predicate is evaluated on each publication by itself
(`matching.evaluate`). The rules of what goes whole are written down here once more.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgspec
import numpy as np

from quorumcast.core.cuts import looks_cut
from quorumcast.core.envelope import ENVELOPE_BYTES, contents_start, read_envelope
from quorumcast.core.ids import NOTHING, Digest
from quorumcast.core.limits import MAX_MATCHED_ROWS
from quorumcast.core.publication import decode_batch, decode_older
from quorumcast.crypto.digest import Hasher
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.schema import arrow_schema
from quorumcast.matching.cut import RowCut
from quorumcast.matching.evaluate import evaluate
from quorumcast.matching.filter import make_filter
from quorumcast.matching.predicate import Predicate, parse_predicate


class RowResult(msgspec.Struct, frozen=True):
    """The value that brokers must vote for, and the contents that they must send."""

    #: What is voted for: `NOTHING`, the digest of the publication, or that of a cut.
    value: bytes
    #: The contents with this value; b"" for nothing.
    body: bytes
    #: The rows that match; None if that cannot be told.
    rows: tuple[int, ...] | None

    @property
    def matches(self) -> bool:
        """Whether there is anything to send."""
        return self.value != NOTHING


class RowTwin:
    """Evaluates predicates on publications, and remembers what came out."""

    def __init__(self, hash_: Hasher) -> None:
        self._hash = hash_
        self._known: dict[tuple[object, ...], RowResult] = {}

    def result(self, entry: ChannelEntry, where: tuple[str, ...], contents: bytes) -> RowResult:
        """What these predicates make of a publication as brokers hold it."""
        key = (entry.schema, entry.policy.total, where, contents)
        if key not in self._known:
            self._known[key] = self._evaluated(entry, where, contents)
        return self._known[key]

    def carried(self, entry: ChannelEntry, contents: bytes) -> RowResult:
        """What brokers of a cell hold of a publication: all of it, or what they carry on."""
        if not entry.carried:
            return RowResult(self._hash(contents), contents, None)
        return self.result(entry, within(entry.carried, ()), contents)

    def id_of(self, entry: ChannelEntry, where: tuple[str, ...]) -> bytes:
        """The id by which votes name these predicates; b"" for none."""
        return _named(entry.schema, where) if where and entry.schema else b""

    def _evaluated(self, entry: ChannelEntry, where: tuple[str, ...], contents: bytes) -> RowResult:
        digest, schema = self._hash(contents), entry.arrow_schema()
        start = contents_start(contents, entry.policy.total) + ENVELOPE_BYTES
        head, message = contents[:start], contents[start:]
        batch = decode_batch(message, schema)
        batch = decode_older(message, schema) if batch is None else batch
        sound = read_envelope(head[-ENVELOPE_BYTES:]) is not None
        if batch is None or not sound or batch.num_rows > MAX_MATCHED_ROWS:
            return RowResult(digest, contents, None)
        found: dict[int, None] = {}
        for text in where:
            rows = evaluate(_parsed(entry.schema, text), batch)
            found.update(dict.fromkeys(rows.tolist()))
        if not found:
            return RowResult(NOTHING, b"", ())
        matching = tuple(sorted(found))
        rows = np.array(matching, np.uint32)
        cut = RowCut(Digest(digest), head, batch.num_rows, rows, batch, rows)
        body = cut.encode()
        if 2 * len(matching) > batch.num_rows or len(body) >= len(contents):
            return RowResult(digest, contents, matching)
        return RowResult(value_of_cut(body), body, matching)


@lru_cache(maxsize=256)
def _parsed(columns: tuple[tuple[str, str], ...], text: str) -> Predicate:
    return parse_predicate(text, arrow_schema(columns), "the predicate")


@lru_cache(maxsize=256)
def _named(columns: tuple[tuple[str, str], ...], where: tuple[str, ...]) -> bytes:
    return make_filter(where, arrow_schema(columns), "the predicate").id


def within(carried: str, where: tuple[str, ...]) -> tuple[str, ...]:
    """Predicates for whole publications, where a cell carries on some rows of them only."""
    if not carried:
        return where
    return tuple(f"({carried}) AND ({text})" for text in where) or (carried,)


def value_of_body(entry: ChannelEntry, hash_: Hasher, body: bytes) -> bytes:
    """The value under which brokers of a channel hold a body."""
    if entry.carried and not body:
        return NOTHING
    return value_of_cut(body) if entry.carried and looks_cut(body) else hash_(body)


def value_of_cut(body: bytes) -> bytes:
    """The value of a vote for this cut."""
    return hashlib.blake2b(body, digest_size=32, person=b"quorumcast cut").digest()
