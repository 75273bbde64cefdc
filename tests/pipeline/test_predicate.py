"""The option `where`: what it lets pass, and what is said of one that means nothing."""

import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.streams.predicate import Where

COLUMNS = (("n", "int64"), ("big", "uint64"), ("share", "float64"), ("at", "timestamp[ms, UTC]"))
#: As Spark sees them.
SEEN = pa.schema(
    [
        ("n", pa.int64()),
        ("big", pa.decimal128(20, 0)),
        ("share", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("_publisher", pa.string()),
        ("_number", pa.int64()),
        ("_dissent", pa.list_(pa.string())),
    ]
)
SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("ratio", pa.float64()),
        ("ok", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("odd name", pa.int64()),
    ]
)
ROWS = [
    {"id": 1, "name": "it's", "ratio": 0.5, "ok": True, "at": datetime(2026, 11, 1, tzinfo=UTC)},
    {"id": 2, "name": "ape", "ratio": -1.5, "ok": False, "day": date(2026, 11, 2), "odd name": 7},
    {"id": None, "name": "apple", "ratio": None, "ok": None},
]
BATCH = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("id = 1", ["it's"]),
        ("ID <> 1", ["ape"]),
        ("not id = 1", ["ape"]),
        ("id >= 1 and ratio < 0", ["ape"]),
        ("id = 1 or id is null", ["it's", "apple"]),
        ("id is not null", ["it's", "ape"]),
        ("id = 1 or id = 2 and ok", ["it's"]),
        ("(id = 1 or id = 2) and not ok", ["ape"]),
        ("id in (2, 3)", ["ape"]),
        ("id not in (2, 3)", ["it's"]),
        ("ratio between -2 and 0", ["ape"]),
        ("name like 'ap%'", ["ape", "apple"]),
        ("name not like 'ap_'", ["it's", "apple"]),
        ("name = 'it''s'", ["it's"]),
        ("ratio = -1.5e0", ["ape"]),
        ("ok = FALSE", ["ape"]),
        ("at < TIMESTAMP '2026-11-01T01:00:00Z'", ["it's"]),
        ("day = date '2026-11-02'", ["ape"]),
        ("`odd name` > 6", ["ape"]),
    ],
)
def test_predicate_lets_pass_what_is_true_and_nothing_else(where: str, names: list[str]) -> None:
    assert Where(where, SCHEMA).passing(BATCH).column("name").to_pylist() == names


def test_predicate_compares_the_largest_unsigned_numbers() -> None:
    schema = pa.schema([("big", pa.decimal128(20, 0)), ("id", pa.int32())])
    rows = [{"big": Decimal(2**64 - 1), "id": 1}, {"big": Decimal(3), "id": 2}]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    for where in ("big = 18446744073709551615", "big > 3", "id < 2"):
        assert Where(where, schema).passing(batch).column("id").to_pylist() == [1]


@pytest.mark.parametrize(
    ("where", "places"),
    [
        ("big > 20.5", [0, 1]),
        ("big between 0.5 and 1e30", [0, 1, 2]),
        ("big in (3, 4.5)", [2]),
        ("big > share", [0, 1]),
        ("small > 16777217", [0]),
        ("small <= 9007199254740993", [0, 1, 2]),
        ("share < 1e30 and not big = 3.0", [0, 1]),
    ],
)
def test_predicate_compares_integers_with_other_numbers_however_large(
    where: str, places: list[int]
) -> None:
    schema = pa.schema([("big", pa.int64()), ("small", pa.float32()), ("share", pa.float64())])
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([2**63 - 1, 2**53 + 1, 3], pa.int64()),
            pa.array([3e7, 2.0, 3.0], pa.float32()),
            pa.array([1.5, 2.5, 3.5], pa.float64()),
        ],
        schema=schema,
    ).append_column("place", pa.array([0, 1, 2]))
    kept = Where(where, schema).passing(batch)
    assert kept.column("place").to_pylist() == places


# In a process of its own: Arrow answers what is too long with the end of the process.
LONG = """
import sys
import pyarrow as pa
from quorumcast.pipeline.streams.predicate import Where
numbers = pa.record_batch({"id": pa.array([1, 7, 20_001])})
kept = Where(sys.stdin.read(), numbers.schema).passing(numbers)
print(kept.column("id").to_pylist())
"""


@pytest.mark.parametrize("count", [1000, 20_000])
@pytest.mark.parametrize("joined", [" or ", ", "])
def test_predicate_that_is_long_is_decided_or_refused(joined: str, count: int) -> None:
    test = "id = {}" if joined == " or " else "{}"
    where = joined.join(test.format(number) for number in range(count))
    where = where if joined == " or " else f"id in ({where})"
    done = subprocess.run(
        [sys.executable, "-c", LONG], input=where, capture_output=True, text=True, check=False
    )
    if count == 1000:
        assert (done.returncode, done.stdout.strip()) == (0, "[1, 7]")
    else:
        assert "UsageError: option 'where' names more than 2,000 columns and" in done.stderr


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("nam = 'x'", "did you mean 'name'?"),
        ("id =", "missing at the end"),
        ("id ~ 1", "'~ 1' is not understood"),
        ("(id = 1", "'\\)' is missing at the end"),
        ("id = 1 ok", "'ok' is one word too many"),
        ("id not 1", "followed by none of IN, BETWEEN and LIKE"),
        ("name like 3", "a pattern between quotes"),
        ("at > timestamp 'noon'", "'noon' is no timestamp"),
        ("name > 3", "does not fit the columns"),
        ("at > timestamp '2026-11-01T00:00:00'", "does not fit the columns.*without timezone"),
        ("id", "does not fit the columns"),
        ("= 3", "stands where a column"),
        ("(" * 100 + "ok", "more than 63 brackets"),
        ("id = 123456789012345678901234567890", "too long a number"),
    ],
)
def test_predicate_that_means_nothing_is_refused_with_the_reason(where: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Where(where, SCHEMA)


def test_predicate_on_a_long_list_of_texts_is_decided() -> None:
    """Such a text is longer than brokers take."""
    names = ", ".join(f"'{number:040}'" for number in range(1900))
    assert Where(f"name in ('ape', {names})", SCHEMA).passing(BATCH).num_rows == 1


def test_rows_in_quarantine_pass_whatever_the_predicate_says() -> None:
    batch = pa.record_batch({"id": pa.array([1, 2, None]), "_raw": pa.array([None, None, b"x"])})
    assert Where("id = 2", batch.schema, always="_raw").passing(batch).num_rows == 2
    assert Where("id = 2", batch.schema, always="_raw").passing(batch.slice(0, 2)).num_rows == 1


def asked(where: str, policy: str = "total", columns: tuple[tuple[str, str], ...] = COLUMNS) -> str:
    entry = ChannelEntry(Channel("orders"), Policy.named(policy), schema=columns)
    return Where(where, SEEN).asked_of(entry) or "everything"


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("n = 3", "n = 3"),
        ("not (n = 3 or _number > 7)", "n != 3"),
        ("n > 3 and _publisher = 'alice' and share < 1", "n >= 4 AND share < 1.0"),
        ("n = 1 and _number = 1 or n = 2 and _number = 2", "n IN (1, 2)"),
        ("n > 3 and (share < 0 or _dissent is not null)", "n >= 4"),
        ("big > 18446744073709551613", "big >= 18446744073709551614"),
        (
            "at > timestamp '2026-11-01T00:00:00.0005Z'",
            "at >= TIMESTAMP '2026-11-01T00:00:00.000501Z'",
        ),
        ("n < big", "n < big"),
        ("n < 3 and n > 3", "FALSE"),
        ("n = 3 or _number > 7", "everything"),
        ("_publisher = 'alice'", "everything"),
        ("true", "everything"),
        # Spark's decimal is rounded beside a float, and a broker's integer is not.
        ("big > share", "everything"),
    ],
)
def test_brokers_are_asked_for_what_the_predicate_says_about_columns_of_the_channel(
    where: str, text: str
) -> None:
    assert asked(where) == text


def test_brokers_are_asked_for_everything_where_they_take_no_predicate() -> None:
    assert asked("n = 3", policy="chain") == "everything"
    assert asked("n = 3", columns=()) == "everything"
    entry = ChannelEntry(Channel("orders"), Policy.named("total"), schema=(("name", "string"),))
    names = ", ".join(f"'{number:040}'" for number in range(1900))
    assert Where(f"name in ({names})", SCHEMA.remove(0)).asked_of(entry) is None
