"""`quorumcast verify`: checks a receipt or a piece of evidence offline, with manifests alone.

Keys, brokers and channels change from epoch to epoch. A document is therefore checked with the
manifests of the epochs in which its statements were signed, if they are kept beside the given one.
All of it must hold by a single manifest: f bounds the faulty brokers of one epoch, and two epochs
together may have 2f. If it fails only because such a manifest is missing, the result is undecided.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumcast.cli.common import console, print_json
from quorumcast.cli.options import CellOptions, JsonOption
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.core.statements import Evidence, Receipt, Statement
    from quorumcast.manifest.manifest import Manifest

#: Exit code for an undecided document.
UNDECIDED = 3
#: Epochs in an error message, at most; a document may name any number of them.
MAX_EPOCHS_SHOWN = 3

EXAMPLE = "verify receipt.json -m cell"


def verify(
    file: Annotated[Path, typer.Argument(help="A receipt or a piece of evidence.")],
    where: CellOptions,
    json_: JsonOption = False,
) -> None:
    """Check a receipt or evidence, without asking any broker.

    Exit code 0 if it holds, 1 if it does not, 3 if it cannot be judged because the manifest of the
    epoch in which it was signed is not there. Manifests of earlier epochs are in DIR/epochs.
    """
    from rich.markup import escape

    verdict = judge_by_epochs(read_document(file), where.path)
    titles = {True: "[green]valid[/]", False: "[red]not valid[/]", None: "[red]cannot be judged[/]"}
    if json_:
        print_json(verdict)
    else:
        text = verdict["says"] if verdict["valid"] else verdict["reason"]
        console().print(f"{titles[verdict['valid']]}: {escape(text)}", soft_wrap=True)
        if verdict["warning"]:
            console().print(f"warning: {verdict['warning']}", markup=False, soft_wrap=True)
    if not verdict["valid"]:
        raise typer.Exit(UNDECIDED if verdict["valid"] is None else 1)


def judge_by_epochs(document: Receipt | Evidence, path: Path) -> dict[str, Any]:
    """The verdict by the manifest in a file, or by one of an earlier epoch beside it."""
    from quorumcast.manifest.files import EPOCHS, read_epoch, read_manifest

    present = read_manifest(path)
    statements = _statements(document)
    cells = {statement.cell for statement in statements}
    named = sorted({s.epoch for s in statements if s.cell == present.cell}, reverse=True)
    found = {epoch: read_epoch(path, present, epoch) for epoch in named}
    missing = [epoch for epoch, manifest in found.items() if manifest is None]
    manifests = [manifest for manifest in found.values() if manifest is not None]
    if present.epoch not in found:
        manifests.append(present)  # keys seldom change, so it may hold by this one too
    verdicts = [{"epoch": m.epoch, **judge(document, m)} for m in manifests]
    for verdict in verdicts:
        if verdict["valid"]:
            return verdict
    verdict = verdicts[0]
    if cells and present.cell not in cells:
        other = min(cells)
        verdict["reason"] = (
            f"it was signed in cell {other!r}, and this manifest is of cell {present.cell!r}; name "
            f"the manifest of {other!r} with -m"
        )
    if missing and not _contradicts_itself(document, present):
        epochs = " or ".join(map(str, missing[:MAX_EPOCHS_SHOWN]))
        verdict["valid"] = None
        verdict["reason"] = (
            f"it was signed in epoch {epochs} of cell {present.cell!r}, this manifest is of epoch "
            f"{present.epoch}, by which {verdict['reason']}; get the manifest of epoch {epochs} "
            f"from the operator and put it into {path.parent / EPOCHS}, or name it with -m"
        )
    return verdict


def _statements(document: Receipt | Evidence) -> list[Statement]:
    """What a document's signatures are under."""
    from quorumcast.core.statements import Receipt, parse_statement

    signed = (
        document.statements
        if isinstance(document, Receipt)
        else (*document.against, *document.witnesses)
    )
    statements = [parse_statement(one.payload) for one in signed]
    return [statement for statement in statements if statement is not None]


def read_document(path: Path) -> Receipt | Evidence:
    """Read a receipt or evidence from a file."""
    import msgspec

    from quorumcast.core.statements import Evidence, Receipt

    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); name another file") from None
    try:
        return msgspec.json.decode(data, type=Receipt | Evidence)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise UsageError(
            f"{path} is neither a receipt nor evidence; name a file that "
            "'quorumcast subscribe --receipt' or a broker wrote"
        ) from None


def _origin(receipt: Receipt) -> tuple[str, int, int | None, str | None]:
    """Publisher, number, position (with total order) and claimed time of the publication."""
    from quorumcast.core.cuts import head_of, looks_cut
    from quorumcast.core.envelope import read_envelope, time_of
    from quorumcast.core.ids import total_order
    from quorumcast.core.labels import unlabel

    stream, contents = receipt.stream, receipt.contents
    if looks_cut(contents):
        contents = head_of(contents)
    found = unlabel(contents) if stream == total_order(stream.channel) else None
    envelope = read_envelope(contents if found is None else found[1])
    when = None if envelope is None else time_of(envelope.published_us).isoformat()
    if found is None:
        return stream.publisher, receipt.number, None, when
    return found[0].publisher, found[0].number, receipt.number, when


def _contradicts_itself(document: Receipt | Evidence, manifest: Manifest) -> bool:
    """Whether a document fails even without its signatures, so that no manifest can help."""
    from quorumcast.core.statements import Receipt

    if not isinstance(document, Receipt):
        return False
    return manifest.court().why_receipt_fails(document, votes=0) is not None


def judge(document: Receipt | Evidence, manifest: Manifest) -> dict[str, Any]:
    """The verdict on a document by one manifest."""
    from quorumcast.core.quorum import receipt_votes
    from quorumcast.core.statements import Receipt

    court = manifest.court()
    facts: dict[str, Any]
    if isinstance(document, Receipt):
        stream = document.stream
        channel = manifest.channel(stream.channel)
        if channel is None:
            reason: str | None = f"cell {manifest.cell!r} has no channel {stream.channel!r}"
        else:
            votes = receipt_votes(manifest.quorums, channel.policy.protection)
            reason = court.why_receipt_fails(document, votes)
        signers = court.receipt_signers(document)
        publisher, number, position, when = _origin(document)
        place = "" if position is None else f" at position {position}"
        facts = {
            "kind": "receipt",
            "says": (
                f"publication {number} of {publisher} on {stream.channel} went through cell "
                f"{manifest.cell}{place}, signed by {', '.join(signers)}"
            ),
            "channel": stream.channel,
            "publisher": publisher,
            "number": number,
            "position": position,
            "published_at": when,
            "signers": signers,
        }
    else:
        reason = court.why_evidence_fails(document)
        facts = {
            "kind": "evidence",
            "says": f"{document.accused} lied ({document.kind.value})",
            "accused": document.accused,
            "proof": document.kind.value,
        }
    if reason is not None:
        facts["says"] = None  # an invalid document proves nothing
    return {"valid": reason is None, "reason": reason, "warning": manifest.warning, **facts}
