"""Measures which digest is fastest on this machine, since that depends on the processor."""

from __future__ import annotations

from functools import cache
from time import perf_counter

from quorumcast.crypto.digest import HASHERS

#: Contents like those of a small publication and of a large one.
_MEASURED_SIZES = (256, 65_536)
_MEASURED_S = 0.02


def choose_digest(name: str) -> str:
    """The digest of that name; `auto` stands for the fastest one on this machine."""
    return fastest_digest() if name == "auto" else name


@cache
def fastest_digest() -> str:
    """The digest that this machine computes fastest, over small and large contents alike.

    Measured once per process: a second measurement may choose another, and a run has one digest.
    """

    def cost(name: str) -> float:
        total = 1.0
        for size in _MEASURED_SIZES:
            contents, rounds, start = bytes(size), 0, perf_counter()
            while (elapsed := perf_counter() - start) < _MEASURED_S:
                HASHERS[name](contents)
                rounds += 1
            total *= elapsed / rounds
        return total

    return min(HASHERS, key=cost)
