"""Accepted events as `quorumcast subscribe` and `quorumcast replay` print them."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING, Any

from quorumcast.cli.common import console, print_json

if TYPE_CHECKING:
    from quorumcast.client.events import Batch, Event, Gap


class Printer:
    """Prints events on standard output, one per line; gaps too as JSON, else on standard error."""

    def __init__(self, json_: bool, *, channels: bool = False) -> None:
        self._json = json_
        #: Whether lines begin with the channel; JSON always has it.
        self._channels = channels

    def events(self, item: Batch | Gap) -> list[Event]:
        """The events of an item; a gap is printed and has none."""
        from quorumcast.client.events import Gap

        if not isinstance(item, Gap):
            return item.events()
        if self._json:
            print_json({"gap": gap_fields(item)})
        else:
            console(stderr=True).print(f"gap: {item}", markup=False)
        return []

    def print(self, event: Event) -> None:
        """Print one event."""
        opaque = event.batch.data.schema.names == ["payload"]
        if self._json:
            print_json(
                {
                    "channel": event.channel,
                    "publisher": event.publisher,
                    "number": event.number,
                    "index": event.index,
                    **({} if event.position is None else {"position": event.position}),
                    "published_at": event.published_at.isoformat(),
                    **({"expired": True} if event.batch.expired else {}),
                    **({"urgent": True} if event.batch.urgent else {}),
                    **(payload_fields(event.payload) if opaque else {"row": _row(event)}),
                    "votes": event.votes,
                    "dissent": event.dissent,
                }
            )
            return
        before = f"{event.channel}\t".encode() if self._channels else b""
        line = event.payload if opaque else json.dumps(_row(event), default=str).encode()
        sys.stdout.buffer.write(before + line + b"\n")
        sys.stdout.buffer.flush()


def gap_fields(gap: Gap) -> dict[str, Any]:
    """The JSON fields of a gap."""
    return {
        "publisher": gap.publisher,
        "from": gap.first,
        "to": gap.upto,
        "reason": gap.reason.value,
    }


def _row(event: Event) -> dict[str, Any]:
    """A row as JSON, in the form that 'quorumcast publish' reads: bytes are base64."""
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in event.row.items()
    }


def payload_fields(payload: bytes) -> dict[str, Any]:
    """The JSON field of a payload: text if it is UTF-8, base64 otherwise."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}
