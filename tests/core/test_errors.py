"""Broken invariants stop the node; unknown names are answered with those that are known."""

from __future__ import annotations

import pytest

from quorumcast.core.errors import InvariantError, did_you_mean, ensure, nearest


def test_ensure_broken_invariant_raises_with_its_text() -> None:
    ensure(True, "never said")
    with pytest.raises(InvariantError, match="numbers only grow"):
        ensure(False, "numbers only grow")


def test_unknown_name_is_answered_with_the_one_that_was_meant_or_with_all() -> None:
    known = ("Alter", "silent")
    assert did_you_mean("altr", known) == "did you mean 'Alter'?"
    assert did_you_mean("x", known) == "choose one of Alter, silent"
    assert did_you_mean("x", ()) == "choose one of none"
    assert nearest("x" * 10**6, known) == ""
