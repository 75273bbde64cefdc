"""`quorumcast verify`: judge a receipt or a piece of evidence offline, from the manifest alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumcast.cli.common import JsonOption, ManifestOption, console, manifest_path, print_json
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.core.statements import Evidence, Receipt
    from quorumcast.manifest.manifest import Manifest

EXAMPLE = "Example:  quorumcast verify receipt.json -m cell"


def verify(
    file: Annotated[Path, typer.Argument(help="A receipt or a piece of evidence.")],
    manifest: ManifestOption = Path(),
    json_: JsonOption = False,
) -> None:
    """Check a receipt or evidence, without asking any broker.

    Exit code 0 if it holds, 1 if it does not.
    """
    from rich.markup import escape

    from quorumcast.manifest.files import read_manifest

    verdict = judge(read_document(file), read_manifest(manifest_path(manifest)))
    if json_:
        print_json(verdict)
    elif verdict["valid"]:
        console().print(f"[green]valid[/]: {escape(verdict['says'])}", soft_wrap=True)
    else:
        console().print(f"[red]not valid[/]: {escape(verdict['reason'])}", soft_wrap=True)
    if not verdict["valid"]:
        raise typer.Exit(1)


def read_document(path: Path) -> Receipt | Evidence:
    """The receipt or evidence in a file."""
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
    """Publisher, number, where there is a total order the place in it, and the time it claims."""
    from quorumcast.core.envelope import read_envelope, time_of
    from quorumcast.core.ids import total_order
    from quorumcast.core.labels import unlabel

    stream = receipt.stream
    found = unlabel(receipt.contents) if stream == total_order(stream.channel) else None
    envelope = read_envelope(receipt.contents if found is None else found[1])
    when = None if envelope is None else time_of(envelope.published_us).isoformat()
    if found is None:
        return stream.publisher, receipt.number, None, when
    return found[0].publisher, found[0].number, receipt.number, when


def judge(document: Receipt | Evidence, manifest: Manifest) -> dict[str, Any]:
    """Whether a document holds, and what it says."""
    from quorumcast.core.quorum import receipt_votes
    from quorumcast.core.statements import Receipt
    from quorumcast.crypto.evidence import Court

    court = Court(
        manifest.cell,
        manifest.broker_ids,
        manifest.quorums,
        manifest.directory(),
        manifest.hash,
    )
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
        facts["says"] = None  # what does not hold claims nothing
    return {"valid": reason is None, "reason": reason, **facts}
