"""What `subscribe --evidence` does when the disk does not take a proof."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quorumcast.cli.clients.misbehaving import MisbehaviourOptions
from quorumcast.cli.clients.printing import Printer
from quorumcast.cli.clients.subscribe import _Listener
from quorumcast.cli.options import ClientOptions
from quorumcast.core.ids import NodeId
from quorumcast.core.statements import Evidence, EvidenceKind


def test_subscribe_evidence_that_cannot_be_saved_is_told_and_nothing_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("where a directory should be")
    node: Any = SimpleNamespace(on_evidence=None)
    where, honest, printer = ClientOptions(), MisbehaviourOptions(), Printer(json_=False)
    _Listener(where, honest, 0, None, None, blocked, None, printer)._report_lies(node)
    node.on_evidence(Evidence(kind=EvidenceKind.CONFLICT, accused=NodeId("b1"), against=()))
    said = capsys.readouterr().err
    assert "b1 lied, and there is proof (conflict); it could not be saved to" in said
    assert "Not a directory" in said
