"""Reports misbehaviour that a broker has noticed: log lines, and evidence as files.

A broker reads its files again when it starts, so that operators keep seeing a proven liar. The
files are only data: the machine verifies them (`SavedEvidence`). Whatever lies in the directory,
reading it is bounded.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection
from pathlib import Path

import msgspec

from quorumcast.cell.accusations import MAX_EVIDENCE_BYTES
from quorumcast.core.ids import NodeId, holder
from quorumcast.core.limits import MAX_MANIFEST_BYTES
from quorumcast.core.machine import Accuse, Suspect
from quorumcast.core.statements import Evidence
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.logs import note
from quorumcast.runtime.telemetry import Telemetry

#: The reason in `telemetry.drops` for evidence that could not be written.
EVIDENCE_NOT_SAVED = "evidence-not-saved"
#: How the name of a broker's file with evidence ends.
SUFFIX = ".evidence"
#: Most bytes of one file with evidence: JSON is longer than the evidence that it contains.
MAX_FILE_BYTES = 2 * (MAX_EVIDENCE_BYTES + MAX_MANIFEST_BYTES)
#: Most files that a broker reads when it starts, and most bytes of all of them.
MAX_FILES = 128
MAX_READ_BYTES = 32 * 1024 * 1024


class MisbehaviourLog:
    """Reports the 1st, 2nd, 4th, 8th … time, so that a faulty node cannot fill the log."""

    def __init__(
        self, name: NodeId, telemetry: Telemetry, evidence: Path | None, *, cell: str = ""
    ) -> None:
        self._name = name
        self._telemetry = telemetry
        self._evidence = evidence
        #: Says which cell is meant, if it is not the broker's own.
        self._about = {"cell": cell} if cell else {}

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
                **self._about,
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
            **self._about,
        )
        if self._evidence is not None:
            try:
                self._evidence.mkdir(parents=True, exist_ok=True)
                name = f"{self._name}-{evidence.accused}"
                save_evidence(evidence, self._evidence, name, SUFFIX)
            except OSError as error:
                # The broker serves on without the file.
                self._telemetry.drops[EVIDENCE_NOT_SAVED] += 1
                reason, path = error.strerror or str(error), str(self._evidence)
                note("cannot save evidence", level=logging.ERROR, path=path, reason=reason)

    def saved(self, brokers: Collection[NodeId]) -> list[Evidence]:
        """Unverified evidence from the files of this broker, that against `brokers` first."""
        if self._evidence is None:
            return []
        mine = f"{self._name}-"
        try:
            names = os.listdir(self._evidence)
        except OSError:
            return []
        names = sorted(name for name in names if name.startswith(mine) and name.endswith(SUFFIX))
        # Not just what begins with a broker's name: a lying client's may, and it can fill the rest.
        about = "|".join(map(re.escape, brokers))
        first = re.compile(f"{re.escape(mine)}({about})(-[0-9]+)?{re.escape(SUFFIX)}")
        names.sort(key=lambda name: first.fullmatch(name) is None)
        found: list[Evidence] = []
        room = MAX_READ_BYTES
        for name in names[:MAX_FILES]:
            data = _content(self._evidence / name, min(room, MAX_FILE_BYTES))
            room -= len(data)
            try:
                found.append(msgspec.json.decode(data, type=Evidence))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue  # not written by this version, or altered
        return found

    def begin_epoch(self, present: Manifest, following: Manifest) -> None:
        """Forget the accusations of nodes that have left the cell or got new keys."""
        old, new = present.keys, following.keys
        for accused in list(self._telemetry.accusations):
            if old.get(holder(accused)) != new.get(holder(accused)):
                del self._telemetry.accusations[accused]


def _content(path: Path, limit: int) -> bytes:
    """The content of an ordinary file that is not longer than this; otherwise nothing."""
    try:
        if not path.is_file():
            return b""  # opening a pipe would wait for its writer
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError:
        return b""
    return data if len(data) <= limit else b""


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
