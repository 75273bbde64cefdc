"""Predicates: canonical text and id, conjunctions, and what is refused in which words."""

import numpy as np
import pyarrow as pa
import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import PREDICATE_ID_SIZE
from quorumcast.matching import canonical
from quorumcast.matching.canonical import operands_of
from quorumcast.matching.conjunctions import MAX_CONJUNCTIONS
from quorumcast.matching.domain import Domain
from quorumcast.matching.filter import make_filter
from quorumcast.matching.indexing.filter_set import IndexedFilter
from quorumcast.matching.nodes import AllOf, Conjunction, Interval, OneOf, Prefix, Presence, Value
from quorumcast.matching.predicate import Predicate, parse_predicate

SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("ratio", pa.float64()),
        ("ok", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("odd`name", pa.int8()),
        ("date", pa.date32()),
    ]
)


def parsed(text: str) -> Predicate:
    return parse_predicate(text, SCHEMA, "the predicate")


@pytest.mark.parametrize(
    ("texts", "canonical"),
    [
        (["id < 5", "ID<=4", "not id >= 5", "5 > id", "id < 4.5"], "id <= 4"),
        (["id = 3 or id = 1", "id in (1, 3)", "id in (3, 1, 1)"], "id IN (1, 3)"),
        (["id between 1 and 5", "id >= 1 and id < 6"], "id >= 1 AND id <= 5"),
        (["id > 3 and id < 5", "id = 4 and id is not null", "id = 4.0"], "id = 4"),
        (["id = 1 and id = 2", "id > 5 and id < 3", "id > 1e300", "ok and not ok"], "FALSE"),
        (["id is null and not id is null", "false and ok", "not true", "id = .5"], "FALSE"),
        (["true", "ok or true", "not (1 > 2)"], "TRUE"),
        (["id < 1e300", "id is not null", "id >= -2147483648", "id != .5"], "id IS NOT NULL"),
        (["ok", "ok = true", "ok <> false", "not ok = false", "ok > false"], "ok = TRUE"),
        (["ok or not ok", "ok in (true, false)"], "ok IS NOT NULL"),
        (["name = 'x' and id = 1", "id = 1 and name = 'x'"], "id = 1 AND name = 'x'"),
        (["id = 1 and (ok or name = 'x')"], "id = 1 AND (name = 'x' OR ok = TRUE)"),
        (["name like 'a\\%b%%'"], "name LIKE 'a\\%b%'"),
        (["name like '%'", "name >= ''"], "name IS NOT NULL"),
        (["name > 'b' and name <= 'c'"], "name > 'b' AND name <= 'c'"),
        (["name >= 'b' and name <= 'b'", "name between 'b' and 'b'"], "name = 'b'"),
        (["name < ''"], "FALSE"),
        (["id in (1, 2, 3) and id != 2"], "id IN (1, 3)"),
        (["id != 2 and not id in (1, 2, 3)"], "id NOT IN (1, 2, 3)"),
        (["id > 1 and id != 7 and id not in (0, 8)"], "id >= 2 AND id NOT IN (7, 8)"),
        (["ratio < 5", "not ratio >= 5.0"], "ratio < 5.0"),
        (["ratio <= 0.1"], "ratio <= 0.1"),
        (["ratio = -0.0", "ratio = 0"], "ratio = 0.0"),
        (["ratio > 1.7976931348623157e308", "ratio = 1e999"], "ratio = 1e999"),
        (["`odd``name` < 3"], "`odd``name` <= 2"),
        (["date = date '0099-01-02'"], "`date` = DATE '0099-01-02'"),
        (["at > date '2026-11-01'"], "at >= TIMESTAMP '2026-11-01T00:00:00.000001Z'"),
        (
            ["at > timestamp '9999-12-31T23:59:59.999999Z'"],
            "at > TIMESTAMP '9999-12-31T23:59:59.999999Z'",
        ),
    ],
)
def test_predicate_of_one_meaning_has_one_text_and_one_id(texts: list[str], canonical: str) -> None:
    found = [parsed(text) for text in [*texts, canonical]]
    assert {predicate.text for predicate in found} == {canonical}
    assert len({predicate.id for predicate in found}) == 1
    assert len(found[0].id) == PREDICATE_ID_SIZE


def test_predicate_of_another_meaning_has_another_id() -> None:
    texts = ["id = 1", "id = 2", "name = '1'", "id IN (1, 2)", "id != 1", "TRUE", "FALSE"]
    assert len({parsed(text).id for text in texts}) == len(texts)


def test_conjunctions_are_the_disjunctive_normal_form() -> None:
    found = parsed("id >= 1 and (ok or id < 9 and name like 'a_') and id is not null").conjunctions
    like = found[0].residual or found[1].residual
    assert set(found) == {
        Conjunction((Interval(0, 1, None), OneOf(3, (1,)))),
        Conjunction((Interval(0, 1, 8),), like),
    }
    assert parsed("false").conjunctions == ()
    assert parsed("true").conjunctions == (Conjunction(()),)
    assert parsed("tags is null").conjunctions == (Conjunction((Presence(5, False),)),)


def test_or_of_more_conjunctions_than_are_filed_stays_whole() -> None:
    tests = [f"id = {n} AND ratio > {n}" for n in range(MAX_CONJUNCTIONS + 1)]
    most = parsed(" OR ".join(tests[1:])).conjunctions
    assert len(most) == MAX_CONJUNCTIONS
    assert all(len(one.constraints) == 2 and one.residual is None for one in most)
    more = parsed(" OR ".join(tests))
    assert more.conjunctions == (Conjunction((), more.meaning),)
    # A few ORs that are short alone are too many together.
    half = MAX_CONJUNCTIONS // 2
    groups = [" OR ".join(tests[:half]), f"ok AND ({' OR '.join(tests[half:])})"]
    nested = parsed(" OR ".join(groups))
    assert nested.conjunctions == (Conjunction((), nested.meaning),)


def nest(inside: str) -> str:
    """A predicate within 28 levels of AND and OR."""
    for level in range(28):
        inside = f"id > {-level} AND (ratio = {level} OR {inside})"
    return inside


SEVERAL = " OR ".join(f"ratio > {4 * n} AND ratio < {4 * n + 3}" for n in range(30))


def test_deep_nest_of_a_set_is_not_gone_through_for_each_level_and_conjunction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1,000 values, 28 levels, up to 58 conjunctions: half a second, and 20 ms were paid for."""
    admits, asked = canonical.admits, [0]

    def counted(test: Interval | Prefix | OneOf, value: Value) -> bool:
        asked[0] += 1
        return admits(test, value)

    monkeypatch.setattr(canonical, "admits", counted)
    text = nest(f"id IN ({', '.join(map(str, range(1000)))}) AND ({SEVERAL})")
    assert parsed(text).conjunctions
    assert asked[0] < 10 * 1000


@pytest.mark.parametrize(
    "text",
    [
        nest(SEVERAL),
        nest(f"id IN ({', '.join(map(str, range(300)))}) AND ({SEVERAL})"),
        " AND ".join(f"(id < {n} OR ratio > {n})" for n in range(90)),
        " AND ".join(f"(id = {n} OR ok OR name != '{n}')" for n in range(90)),
        f"({SEVERAL}) AND (id < 40 OR name = 'n') AND NOT name LIKE '%x%'",
    ],
)
def test_conjunctions_of_a_nest_are_short_together_and_find_the_same_rows(text: str) -> None:
    predicate = parsed(text)
    size = operands_of(predicate.meaning)
    parts = [
        part
        for one in predicate.conjunctions
        for part in (*one.constraints, AllOf(() if one.residual is None else (one.residual,)))
    ]
    assert sum(map(operands_of, parts)) <= 4096 + 4 * size
    rng = np.random.default_rng(1)
    rows = [
        {"id": int(rng.integers(100)), "ratio": float(rng.integers(100)), "name": "n", "ok": False}
        for _ in range(500)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    filter_ = make_filter((text,), SCHEMA, "the predicate")
    found = filter_.rows(batch).tolist()
    assert IndexedFilter(filter_).rows(batch).tolist() == found
    assert len(found) > 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nam = 'x'", r"names the column 'nam', which is not there: did you mean 'name'\?$"),
        ("id =", "missing at the end"),
        ("", "is empty: leave it out, or write TRUE"),
        (" \n", "is empty"),
        ("id ~ 1", "'~ 1' is not understood"),
        ('name = "x"', "between single quotes"),
        ("name = 'x", "close the quote"),
        ("name = 'O'Neil'", "close the quote, and write a quote within a text twice"),
        ("id = 1 && ok", "write AND"),
        ("id == 1", "write one '='"),
        ("id + 1 = 2", "no arithmetic"),
        ("lower(name) = 'x'", "no functions"),
        ("name = NULL", "compares with NULL: write IS NULL or IS NOT NULL"),
        ("name = AMZ", r"there are id, .* \(a text stands between single quotes\)$"),
        ("name = nam", r"did you mean 'name'\? \(a text stands between single quotes\)$"),
        ("(id = 1", "'\\)' is missing at the end"),
        ("id between 1 or 2", "'AND' is missing before 'or'"),
        ("id = 1 ok", "'ok' is one word too many"),
        ("id not 1", "followed by none of IN, BETWEEN and LIKE"),
        ("name like 3", "a pattern between quotes"),
        ("(name ilike 'a%')", "there is no 'ilike' in .*: write LIKE, which tells large letters"),
        ("name NOT RLIKE 'a*'", "there is no 'rlike' in .*: write LIKE, in whose patterns %"),
        ("name like 'a\\'", "ends with a backslash"),
        ("'a' like 'a'", "LIKE has a value on its left"),
        ("id like 'a'", "column 'id' is an integer, which does not compare with a pattern"),
        ("at > timestamp 'noon'", "'noon' is no timestamp"),
        ("name = X'0'", "'0' is no row of bytes in hexadecimal"),
        ("name > 3", "column 'name' is text, which does not compare with a number"),
        ("name = id", "column 'name' is text, which does not compare with column 'id'"),
        ("tags = tags", "of a type without an order"),
        ("at > timestamp '2026-11-01T00:00:00'", "a time without timezone: write TIMESTAMP '.*Z'"),
        ("id = '1'", "does not compare with text: write a number, without quotes"),
        ("ok = 1", "does not compare with a number: write TRUE or FALSE"),
        ("1 = 'a'", "a number does not compare with text"),
        ("id", "column 'id' is an integer and stands alone"),
        ("3", "a number stands alone"),
        ("= 3", "stands where a column"),
        ("(" * 100 + "ok", "more than 63 brackets or NOTs"),
        ("id = 123456789012345678901234567890", "too long a number"),
        ("id < 1e99999999999999999999999999", "too long a number"),
        ("name = '\ud800'", "not Unicode"),
    ],
)
def test_predicate_that_means_nothing_is_refused_with_the_reason(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=f"^the predicate .*{sentence}"):
        parsed(text)


def test_each_part_of_a_deep_predicate_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are sorted by their texts at each of 60 levels."""
    calls: list[object] = []
    plainly = canonical._written_test

    def noted(test: canonical.Mergeable, name: str, domain: Domain) -> str:
        calls.append(test)
        return plainly(test, name, domain)

    monkeypatch.setattr(canonical, "_written_test", noted)
    levels = "".join(f"(id > {n} OR ratio < {n} AND " for n in range(60))
    parsed(levels + "name = 'x'" + ")" * 60)
    assert 121 <= len(calls) <= 3 * 121
