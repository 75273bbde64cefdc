"""Tests compiled into functions from a batch to the rows for which they are true.

Numbers and times are compared by numpy on Arrow's buffers: 1 to 2 µs per 1,000 rows, where an Arrow
kernel takes 10. Text, bytes and decimals go through Arrow's kernels with typed scalars that are
made once. An absent value makes each test false, because the tree of meaning has no NOT.

`cost_of` estimates what a test takes, so that a node can tell a costly filter from a cheap one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumcast.matching.columns import BatchView, Bools, Columns, bools
from quorumcast.matching.domain import Domain, ValueFamily
from quorumcast.matching.nodes import (
    AllOf,
    AnyOf,
    Compared,
    Interval,
    Meaning,
    NoneOf,
    OneOf,
    Pattern,
    Prefix,
    Presence,
    Sign,
    Value,
)

#: The rows of a batch for which a test is true.
Mask = Callable[[BatchView], Bools]

#: Sets up to this size are compared value by value.
_FEW = 3


class MatchingCost(NamedTuple):
    """About how many microseconds a test takes: per 1,000 rows, and per batch, however small."""

    rows_us: float
    batch_us: float

    @classmethod
    def total(cls, costs: Iterable[MatchingCost]) -> MatchingCost:
        """The cost of several tests."""
        rows_us = batch_us = 0.0
        for rows, batch in costs:
            rows_us, batch_us = rows_us + rows, batch_us + batch
        return cls(rows_us, batch_us)


#: A comparison by numpy, one by a kernel of Arrow, a pattern, and a comparison of two columns.
_NUMPY, _ARROW, _PATTERN, _COLUMNS = (
    MatchingCost(4, 3),
    MatchingCost(12, 15),
    MatchingCost(120, 60),
    MatchingCost(30, 30),
)
#: Joining a part of an AND or OR to the others.
_JOIN = MatchingCost(0.5, 0.5)
#: What 1,000 rows take with a set.
_SET_US = 40.0


def compiled(meaning: Meaning, columns: Columns) -> Mask:
    """The function that finds the rows for which a test is true."""
    match meaning:
        case AllOf(parts=parts):
            return _combined([compiled(part, columns) for part in parts], np.logical_and, True)
        case AnyOf(parts=parts):
            return _combined([compiled(part, columns) for part in parts], np.logical_or, False)
        case Presence(column=column, present=present):
            return lambda view: _presence(view, column, present)
        case Compared(left=left, sign=sign, right=right):
            order = _ordering(left, right, columns)
            return lambda view: _signed(sign, *order(view)) & _both(view, left, right)
        case Pattern(column=column, pattern=pattern, negated=negated):
            return _pattern(column, pattern, negated)
        case Interval(column=column) | OneOf(column=column) | NoneOf(column=column):
            domain = columns.domains[column]
            if domain.read_by_arrow:
                return _by_arrow(meaning, domain, columns.types[column])
            return _by_numpy(meaning, domain)
        case Prefix(column=column, prefix=prefix):
            return lambda view: bools(pc.starts_with(view.raw(column), prefix))
    assert_never(meaning)


def cost_of(meaning: Meaning, columns: Columns) -> MatchingCost:
    """The cost of a test."""
    match meaning:
        case AllOf(parts=parts) | AnyOf(parts=parts):
            joins = _times(len(parts), _JOIN)
            return MatchingCost.total([*(cost_of(part, columns) for part in parts), joins])
        case Presence():
            return _NUMPY
        case Pattern():
            return _PATTERN
        case Prefix():
            return _ARROW
        case Compared():
            return _COLUMNS
        case OneOf(column=column, values=values) | NoneOf(column=column, values=values):
            one = _comparison_cost(column, columns)
            is_few = len(values) <= _FEW
            return _times(len(values), one) if is_few else MatchingCost(_SET_US, one.batch_us)
        case Interval(column=column, low=low, high=high):
            bounds = (low is not None) + (high is not None)
            return _times(bounds, _comparison_cost(column, columns))
    assert_never(meaning)


def _comparison_cost(column: int, columns: Columns) -> MatchingCost:
    return _ARROW if columns.domains[column].read_by_arrow else _NUMPY


def _times(count: int, cost: MatchingCost) -> MatchingCost:
    return MatchingCost(count * cost.rows_us, count * cost.batch_us)


def _combined(parts: Sequence[Mask], join: np.ufunc, neutral: bool) -> Mask:
    if not parts:
        return lambda view: np.full(view.rows, neutral)

    def mask(view: BatchView) -> Bools:
        found = parts[0](view)
        for part in parts[1:]:
            found = join(found, part(view))
        return found

    return mask


def _presence(view: BatchView, column: int, present: bool) -> Bools:
    found = view.present(column)
    if found is None:
        return np.full(view.rows, present)
    return found if present else ~found


def _both(view: BatchView, left: int, right: int) -> Bools:
    return _presence(view, left, True) & _presence(view, right, True)


def _kept(found: Bools, view: BatchView, column: int) -> Bools:
    """Without the rows that have no value."""
    present = view.present(column)
    return found if present is None else found & present


# ------------------------------------------------------------------------ numbers


def _by_numpy(test: Interval | OneOf | NoneOf, domain: Domain) -> Mask:
    column = test.column
    # A typed scalar: numpy would round a plain number to the float32 of the column.
    typed: Callable[[Any], Any] = np.float64 if domain.family is ValueFamily.FLOAT else int
    match test:
        case Interval(low=low, high=high):
            least = None if low is None else typed(low)
            most = None if high is None else typed(high)
            return lambda view: _kept(_within(view.numbers(column), least, most), view, column)
        case OneOf(values=values) | NoneOf(values=values):
            wanted = [typed(value) for value in values]
            listed = np.array(wanted, domain.number_type) if len(wanted) > _FEW else None
            negated = isinstance(test, NoneOf)
            return lambda view: _kept(
                _among(view.numbers(column), wanted, listed, negated), view, column
            )
    assert_never(test)


def _within(numbers: Any, low: Any, high: Any) -> Bools:
    if low is None:
        below: Bools = numbers <= high
        return below
    above: Bools = numbers >= low
    return above if high is None else above & (numbers <= high)


def _among(numbers: Any, values: Sequence[Any], listed: Any, negated: bool) -> Bools:
    if listed is not None:
        return np.isin(numbers, listed, invert=negated)
    found: Bools = numbers == values[0]
    for value in values[1:]:
        found = found | (numbers == value)
    return ~found if negated else found


# ------------------------------------------------------------------------ Arrow's kernels


def _by_arrow(test: Interval | OneOf | NoneOf, domain: Domain, kind: pa.DataType) -> Mask:
    column = test.column
    kind = kind if domain.family is ValueFamily.DECIMAL else pa.binary()
    match test:
        case Interval(low=low, high=high):
            below = pc.less_equal if domain.family is ValueFamily.DECIMAL else pc.less
            bounds = [(pc.greater_equal, _scalar(low, kind))] if low is not None else []
            bounds += [(below, _scalar(high, kind))] if high is not None else []
            masks = [_kernel(column, compare, scalar) for compare, scalar in bounds]
            return _combined(masks, np.logical_and, True)
        case OneOf(values=(value,)):
            return _kernel(column, pc.equal, _scalar(value, kind))
        case NoneOf(values=(value,)):
            return _kernel(column, pc.not_equal, _scalar(value, kind))
        case OneOf(values=values) | NoneOf(values=values):
            options = pc.SetLookupOptions(value_set=array_of(values, kind))
            negated = isinstance(test, NoneOf)

            def among(view: BatchView) -> Bools:
                found = bools(pc.is_in(view.raw(column), options=options))
                return _kept(~found if negated else found, view, column)

            return among
    assert_never(test)


def _kernel(column: int, compare: Callable[..., pa.Array], scalar: pa.Scalar) -> Mask:
    return lambda view: bools(compare(view.raw(column), scalar))


def _pattern(column: int, pattern: str, negated: bool) -> Mask:
    def mask(view: BatchView) -> Bools:
        found = bools(pc.match_like(view.array(column), pattern))
        return _kept(~found, view, column) if negated else found

    return mask


def _scalar(value: Value, kind: pa.DataType) -> pa.Scalar:
    return array_of([value], kind)[0]


def array_of(values: Sequence[Value], kind: pa.DataType) -> pa.Array:
    """Text as bytes, bytes or decimals as an Arrow array, made without pandas."""
    if pa.types.is_decimal(kind):
        data = b"".join(int(value).to_bytes(16, "little", signed=True) for value in values)
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(data)])
    texts = [value for value in values if isinstance(value, bytes)]
    ends = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([len(text) for text in texts], out=ends[1:])
    data = b"".join(texts)
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(texts), buffers)


# ------------------------------------------------------------------------ two columns

#: Where the left value is less than, and equal to, the right one.
_Order = tuple[Bools, Bools]


def _signed(sign: Sign, less: Bools, equal: Bools) -> Bools:
    match sign:
        case Sign.EQUAL:
            return equal
        case Sign.UNEQUAL:
            return ~equal
        case Sign.LESS:
            return less
        case Sign.AT_MOST:
            return less | equal
        case Sign.MORE:
            return ~(less | equal)
        case Sign.AT_LEAST:
            return ~less
    assert_never(sign)


def _ordering(left: int, right: int, columns: Columns) -> Callable[[BatchView], _Order]:
    first, second = columns.domains[left], columns.domains[right]
    families = {first.family, second.family}
    if first.read_by_arrow or second.read_by_arrow:
        return lambda view: _order_by_arrow(view, left, right, families)
    if families == {ValueFamily.INTEGER, ValueFamily.FLOAT}:
        if first.family is ValueFamily.INTEGER:
            return lambda view: _order_mixed(view.numbers(left), view.numbers(right))

        def swapped(view: BatchView) -> _Order:
            less, equal = _order_mixed(view.numbers(right), view.numbers(left))
            return ~(less | equal), equal

        return swapped
    if first.scale != second.scale:
        return lambda view: _order_of_times(
            view.numbers(left), first.scale, view.numbers(right), second.scale
        )
    return lambda view: _order(view.numbers(left), view.numbers(right))


def _order(left: Any, right: Any) -> _Order:
    return left < right, left == right


def _order_mixed(whole: Any, real: Any) -> _Order:
    """Integers beside floats, exactly.

    Rounding an integer to a float keeps the order with every float but the one that it becomes; if
    they are equal then, the float is whole, and is compared as an integer.
    """
    real = real.astype(np.float64)
    rounded = whole.astype(np.float64)
    tied = rounded == real
    top = 2.0**64 if whole.dtype == np.uint64 else 2.0**63
    beyond = tied & (real >= top)
    kind = np.uint64 if whole.dtype == np.uint64 else np.int64
    back = np.where(tied & ~beyond, real, 0.0).astype(kind)
    wide = whole.astype(kind)
    less = (rounded < real) | beyond | (tied & (wide < back))
    return less, tied & ~beyond & (wide == back)


def _order_of_times(left: Any, left_scale: int, right: Any, right_scale: int) -> _Order:
    """Times of different units: the finer one in whole ticks of the coarser one, and a rest."""
    left, right = left.astype(np.int64), right.astype(np.int64)
    if left_scale < right_scale:
        whole, rest = np.divmod(right, right_scale // left_scale)
        return (left < whole) | ((left == whole) & (rest > 0)), (left == whole) & (rest == 0)
    whole, rest = np.divmod(left, left_scale // right_scale)
    return whole < right, (whole == right) & (rest == 0)


def _order_by_arrow(view: BatchView, left: int, right: int, families: set[ValueFamily]) -> _Order:
    first, second = view.raw(left), view.raw(right)
    if ValueFamily.FLOAT in families:  # beside a decimal: the nearest float
        first, second = (pc.cast(side, pa.float64(), safe=False) for side in (first, second))
    elif first.type != second.type and ValueFamily.INTEGER in families:
        wide = pa.decimal256(76, 38)
        first, second = (pc.cast(side, wide) for side in (first, second))
    return bools(pc.less(first, second)), bools(pc.equal(first, second))
