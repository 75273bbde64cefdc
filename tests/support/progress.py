"""What a command says of how far it is, all of it, and not only what there is time to show."""

from __future__ import annotations

import pytest

from quorumcast.cli.progress import ProgressDisplay


def heard(monkeypatch: pytest.MonkeyPatch, module: str) -> list[str]:
    """Everything that commands of this module say of how far they are."""
    said: list[str] = []

    class Heard(ProgressDisplay):
        def __call__(self, doing: str) -> None:
            said.append(doing)
            super().__call__(doing)

    monkeypatch.setattr(f"{module}.ProgressDisplay", Heard)
    return said
