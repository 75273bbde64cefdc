"""The limits of a predicate's text: each is filled, then exceeded by one."""

import subprocess
import sys
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_PREDICATE_TEXT
from quorumcast.matching.conjunctions import MAX_CONJUNCTIONS
from quorumcast.matching.evaluate import evaluate
from quorumcast.matching.grammar import MAX_DEPTH, MAX_FLOATING, MAX_OPERANDS, MAX_PATTERN
from quorumcast.matching.predicate import Predicate, parse_predicate

SCHEMA = pa.schema([*((f"c{index}", pa.int32()) for index in range(8)), ("name", pa.string())])
TEXTS = [bin(row * 0x9E3779B97F4A7C15 % 2**64)[2:] * 4 for row in range(1000)]
BATCH = pa.RecordBatch.from_pylist(
    [{"c0": 7, "name": text.translate({48: "a", 49: "b"})} for text in TEXTS], schema=SCHEMA
)


def parsed(text: str) -> Predicate:
    return parse_predicate(text, SCHEMA, "the predicate")


@pytest.mark.parametrize(
    ("limit", "text", "sentence"),
    [
        (MAX_PREDICATE_TEXT, lambda n: "c0 =".ljust(n - 1) + "7", "longer than 32,768 bytes"),
        (MAX_PREDICATE_TEXT // 2 - 5, lambda n: f"name = '{'é' * n}'", "longer than 32,768 bytes"),
        (MAX_OPERANDS - 1, lambda n: f"c0 in ({'7,' * (n - 1)}7)", "more than 2,000 columns"),
        (MAX_DEPTH - 1, lambda n: "(" * n + "c0 = 7" + ")" * n, "more than 63 brackets"),
        (MAX_DEPTH - 1, lambda n: "not " * n + "c0 is null", "more than 63 brackets"),
        (MAX_PATTERN, lambda n: f"name like '{'_' * (n - 1)}%'", "more than 1,024 characters"),
        (MAX_FLOATING, lambda n: f"name like '__\\%a%x{'_' * n}x%\\_'", "more than 8 of '_'"),
    ],
)
def test_predicate_at_a_limit_is_decided_and_beyond_it_is_refused(
    limit: int, text: Callable[[int], str], sentence: str
) -> None:
    evaluate(parsed(text(limit)), BATCH)
    with pytest.raises(UsageError, match=sentence):
        parsed(text(limit + 1))


@pytest.mark.parametrize(
    "text",
    [
        "c0 != c1 or " * 1000 + "c0 is null",
        "(c0 = 1 or c1 = 2 or name like '%a%b') and " * 600 + "c0 = 7",
        " or ".join(f"c{n % 8} >= {n} and c{n % 7} < {-n}" for n in range(400)),
        "(" * 60 + "c0 = 1" + " or c1 > 2) and c3 = 4" * 60,
        "not (" * 31 + "c0 = 1" + " or c1 > 2 and c2 < 3) and c3 = 4" * 31,
        "c0 in (" + "7, " * 1900 + "7) and (c1 = 1 or c2 = 2) and (c3 = 3 or c4 = 4)",
        "'" * (MAX_PREDICATE_TEXT - 1),
        "(" * MAX_PREDICATE_TEXT,
        "c0 = " + "9" * (MAX_PREDICATE_TEXT - 5),
        "name like '" + "%é" * 512 + "'",
        "name like '%" + "ab" * 500 + "_%b__%_ab__b__%x'",
        "name like '%a" + "_" * 900 + "b%'",
        "`" + "x" * (MAX_PREDICATE_TEXT - 10) + "` = 1",
    ],
)
def test_predicate_of_the_worst_form_takes_little_time(text: str) -> None:
    began = time.process_time()
    said = ""
    try:
        predicate = parsed(text)
    except UsageError as error:
        said = str(error)
    else:
        assert len(predicate.conjunctions) <= MAX_CONJUNCTIONS
        assert len(predicate.text.encode()) <= MAX_PREDICATE_TEXT
        evaluate(predicate, BATCH)
    assert len(said) < 1000
    assert time.process_time() - began < 1.0  # tens of milliseconds on an idle machine


def test_predicate_that_is_longer_when_written_out_is_refused() -> None:
    schema = pa.schema([("raw", pa.binary())])
    with pytest.raises(UsageError, match="too long once it is written out"):
        parse_predicate(f"raw = '{'x' * 20_000}'", schema, "the predicate")


WITHOUT_PANDAS = """
import sys
from quorumcast.manifest.schema import ARROW_TYPES, arrow_schema
from quorumcast.matching.evaluate import evaluate
from quorumcast.matching.predicate import parse_predicate
import pyarrow as pa
schema = arrow_schema([(f"c{n}", name) for n, name in enumerate(ARROW_TYPES)])
batch = pa.RecordBatch.from_arrays([pa.nulls(3, kind) for kind in schema.types], schema=schema)
text = "c11 IN ('a', 'b') OR c12 >= 'x' OR c11 LIKE 'a%b' OR c4 IN (1, 2, 3, 4, 5) OR c10 > 0.5"
for text in (text, "c0 OR c13 = DATE '2026-11-01' OR c4 < c10 OR c11 = c12 OR c14 < c15"):
    assert not len(evaluate(parse_predicate(text, schema, "x"), batch))
print("pandas" in sys.modules)
"""


def test_evaluation_does_not_load_pandas() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
