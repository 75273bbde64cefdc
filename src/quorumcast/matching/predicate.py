"""Predicates: what a text means on one schema, in a form that is the same for equal meanings.

`parse_predicate` binds the written tree to the columns of a schema. Negations are pushed into the
tests, comparisons with literals become intervals and sets, tests of one column that stand beside
one another are merged, and parts are sorted. The *canonical text* is that tree written out: it
parses back to the same tree, so that its hash, the *id*, names the predicate. Two predicates of one
id select the same rows of the same schema. The converse does not hold: whether two texts mean the
same cannot be decided cheaply.

An index needs *conjunctions*: a predicate is true where one of its conjunctions is. There are at
most `MAX_CONJUNCTIONS` of them; what would need more stays in their `residual`.
"""

from __future__ import annotations

import hashlib

import msgspec
import pyarrow as pa

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import PREDICATE_ID_SIZE
from quorumcast.core.limits import MAX_PREDICATE_TEXT
from quorumcast.matching.binding import bind
from quorumcast.matching.canonical import CanonicalTexts, operands_of
from quorumcast.matching.columns import Columns
from quorumcast.matching.conjunctions import MAX_CONJUNCTIONS, conjunctions_of
from quorumcast.matching.grammar import MAX_OPERANDS, parse_text
from quorumcast.matching.kernels import Mask, compiled
from quorumcast.matching.nodes import Conjunction, Meaning

_PERSON = b"qc-predicate"


class Predicate(msgspec.Struct, frozen=True, eq=False):
    """A predicate on the rows of one schema."""

    columns: Columns
    #: What it means; has no NOT.
    meaning: Meaning
    #: The canonical text.
    text: str
    #: 16 bytes over the canonical text.
    id: bytes
    #: Its disjunctive normal form.
    conjunctions: tuple[Conjunction, ...]
    #: Which rows of a batch it is true for.
    mask: Mask


def parse_predicate(
    text: str,
    schema: pa.Schema | Columns,
    who: str,
    max_bytes: int = MAX_PREDICATE_TEXT,
    conjunctions: int = MAX_CONJUNCTIONS,
) -> Predicate:
    """Parse a predicate on a schema; raise `UsageError`, which names it as `who`, if it is none.

    No AND of ORs in it becomes more `conjunctions` than that.
    """
    columns = schema if isinstance(schema, Columns) else Columns(schema)
    meaning = bind(parse_text(text, who, max_bytes), columns, who)
    canonical = CanonicalTexts(columns).of(meaning)
    size = len(canonical.encode())
    if size > max_bytes or operands_of(meaning) > MAX_OPERANDS:
        raise UsageError(
            f"{who} is too long once it is written out ({size:,} bytes): ask for more rows, and "
            "filter them where they arrive"
        )
    return Predicate(
        columns=columns,
        meaning=meaning,
        text=canonical,
        id=_named(canonical),
        conjunctions=conjunctions_of(meaning, columns, conjunctions),
        mask=compiled(meaning, columns),
    )


def _named(canonical: str) -> bytes:
    return hashlib.blake2b(
        canonical.encode(), digest_size=PREDICATE_ID_SIZE, person=_PERSON
    ).digest()
