"""Reports misbehaviour that a broker has noticed: log lines, and evidence as files."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Accuse, Suspect
from quorumcast.core.statements import Evidence
from quorumcast.runtime.logs import note
from quorumcast.runtime.telemetry import Telemetry

#: The reason in `telemetry.drops` for evidence that could not be written.
EVIDENCE_NOT_SAVED = "evidence-not-saved"


class MisbehaviourLog:
    """Reports the 1st, 2nd, 4th, 8th … time, so that a faulty node cannot fill the log."""

    def __init__(self, name: NodeId, telemetry: Telemetry, evidence: Path | None) -> None:
        self._name = name
        self._telemetry = telemetry
        self._evidence = evidence

    def on_suspect(self, effect: Suspect) -> None:
        """Report a node that behaved as no correct node does."""
        count = self._telemetry.suspicions[effect.node, effect.reason.value]
        if count & (count - 1) == 0:
            note(
                "suspects",
                level=logging.WARNING,
                suspect=effect.node,
                reason=effect.reason.value,
                stream=str(effect.stream) if effect.stream else "",
                number=effect.number,
                times=count,
            )

    def on_accuse(self, effect: Accuse) -> None:
        """Report a node that is proven to have lied, and save the proof."""
        evidence = effect.evidence
        count = self._telemetry.accusations[evidence.accused]
        if count & (count - 1):
            return
        note(
            "has proof of a lie",
            level=logging.WARNING,
            accused=evidence.accused,
            kind=evidence.kind.value,
            times=count,
        )
        if self._evidence is not None:
            try:
                self._evidence.mkdir(parents=True, exist_ok=True)
                name = f"{self._name}-{evidence.accused}"
                save_evidence(evidence, self._evidence, name, ".evidence")
            except OSError as error:
                # The broker serves on without the file.
                self._telemetry.drops[EVIDENCE_NOT_SAVED] += 1
                reason, path = error.strerror or str(error), str(self._evidence)
                note("cannot save evidence", level=logging.ERROR, path=path, reason=reason)


def save_evidence(evidence: Evidence, directory: Path, name: str, suffix: str) -> Path:
    """Write a proof into a new file, unless a file of that name already holds it."""
    data = msgspec.json.encode(evidence) + b"\n"
    path, number = directory / f"{name}{suffix}", 1
    while True:
        try:
            with path.open("xb") as file:
                file.write(data)
        except FileExistsError:
            if path.is_file() and path.read_bytes() == data:
                return path
        else:
            return path
        number += 1
        path = directory / f"{name}-{number}{suffix}"
