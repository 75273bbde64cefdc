"""Broken invariants stop the node."""

from __future__ import annotations

import pytest

from quorumcast.core.errors import InvariantError, ensure


def test_ensure_broken_invariant_raises_with_its_text() -> None:
    ensure(True, "never said")
    with pytest.raises(InvariantError, match="numbers only grow"):
        ensure(False, "numbers only grow")
