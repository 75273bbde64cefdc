"""Patterns of channel names, against a plain twin, and those that blow naive matchers up."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_NAME
from quorumcast.manifest import patterns
from quorumcast.manifest.patterns import is_pattern, matches, matching

EXAMPLES = [
    ("orders", "orders", True),
    ("orders", "order", False),
    ("*", "orders", True),
    ("*", "plant/temp", False),
    ("**", "plant/1/temp", True),
    ("plant/*/temp", "plant/1/temp", True),
    ("plant/*/temp", "plant/temp", False),
    ("plant/*/temp", "plant/1/2/temp", False),
    ("plant/**", "plant", True),
    ("plant/**", "plant/1", True),
    ("plant/**", "plants", False),
    ("plant/**/temp", "plant/temp", True),
    ("plant/**/temp", "plant/1/2/temp", True),
    ("plant/**/temp", "plant/1/temp/2", False),
    ("**/temp/**", "a/temp/b/temp", True),
    ("**/*/**", "a", True),
    ("*/**/*", "a", False),
    ("a/*", "a/", True),
]


@pytest.mark.parametrize(("pattern", "name", "expected"), EXAMPLES)
def test_pattern_matches_whole_levels(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


def plain(levels: list[str], names: list[str]) -> bool:
    if not levels:
        return not names
    if levels[0] == "**":
        return plain(levels[1:], names) or (bool(names) and plain(levels, names[1:]))
    return bool(names) and levels[0] in ("*", names[0]) and plain(levels[1:], names[1:])


LEVELS = st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=7)
NAMES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=7)


@given(LEVELS, NAMES)
def test_pattern_agrees_with_its_plain_twin(levels: list[str], names: list[str]) -> None:
    assert matches("/".join(levels), "/".join(names)) is plain(levels, names)


@contextmanager
def counted_lines() -> Iterator[list[int]]:
    """How many lines of the matcher run."""
    steps = [0]

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == patterns.__file__:
            steps[0] += event == "line"
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield steps
    finally:
        sys.settrace(before)


def test_pattern_of_nothing_but_stars_takes_steps_and_not_ages() -> None:
    pattern = "/".join(["**", "a"] * 20 + ["b"])
    name = "/".join(["a"] * 64)
    with counted_lines() as steps:
        assert not matches(pattern, name)
    assert 0 < steps[0] < 10 * 41 * 64


@pytest.mark.parametrize("pattern", ["plant/temp*", "***", "a**/b", "*a"])
def test_pattern_with_half_an_open_level_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="a level is '\\*' \\(any one level\\)"):
        matching(pattern, [])


def test_pattern_longer_than_any_name_is_refused() -> None:
    with pytest.raises(UsageError, match=f"{MAX_NAME} are allowed"):
        matching("*/" * MAX_NAME, [])


def test_pattern_is_known_by_its_stars_and_finds_names_in_their_order() -> None:
    assert is_pattern("plant/**")
    assert not is_pattern("plant/1")
    assert matching("plant/**", ["plant/2", "orders", "plant/1"]) == ["plant/2", "plant/1"]
