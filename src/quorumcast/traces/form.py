"""What a trace looks like on disk: Parquet files in a directory, and a header that names the run.

    DIR/trace.json       the scenario: which system with which parameters, and what was expected
    DIR/*.parquet        rows of `COLUMNS`, one or more files per node

Five kinds of rows, of which a file keeps each in row groups of its own:

    published    a publisher sent a publication of its own to `peer`
    passed_on    another node sent it on to `peer`, a node between publisher and subscribers
    forwarded    a broker vouched for a publication to the subscriber `peer`
    accepted     a subscriber accepted it; `peer` names the brokers that voted for it
    sent         `number` messages of the type `message` and `bytes` bytes went to `peer` since the
                 last such row: everything that a node says, whatever it is about

Roles are names that a system gives its nodes. Nodes of one machine share its monotonic clock; a
simulated run has virtual time.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.traces.drafts import replacing

#: The columns of a trace and their Arrow types.
COLUMNS = {
    "t_ns": "int64",
    "role": "string",
    "node": "string",
    "kind": "string",
    "channel": "string",
    "publisher": "string",
    "incarnation": "int64",
    "lane": "int8",
    "number": "int64",
    "peer": "string",
    # The run that a row belongs to, as its header has it.
    "run": "string",
    # The sender's place in a chain, from 1; 0 where there is none.
    "place": "int8",
    # By how many messages, one after another, a publication came; 0 where a system does not say.
    "hops": "int16",
    # Whether an acceptance is owed to a history and not to the fast path.
    "by_history": "bool",
    # Of contents that were accepted, or of messages that were sent, without their sealing.
    "bytes": "int64",
    "message": "string",
}

#: Counts up when a reader of older traces would be wrong about newer ones.
FORMAT = 3
HEADER = "trace.json"

BENCH, SIMULATOR = "bench", "sim"

Parameter = bool | int | float | str


class Listening(msgspec.Struct, frozen=True):
    """A subscriber that was to get everything published on a channel from a time on."""

    node: str
    channel: str
    since_ns: int = 0


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The scenario of one run."""

    format: int = FORMAT
    #: Tells the rows of this run from those of others.
    run: str
    #: BENCH or SIMULATOR.
    source: str
    #: Of the program that wrote the trace.
    version: str
    #: The system that ran, by name.
    system: str
    #: Its parameters, the most important first. Runs that agree in them are of one scenario.
    parameters: dict[str, Parameter] = {}
    #: Parameters that a seed drew. Runs that differ in these alone are of one scenario.
    drawn: dict[str, Parameter] = {}
    fault: str = ""
    #: Of the simulator.
    seed: int | None = None
    #: Whose publications count; a liar's do not.
    publishers: tuple[str, ...] = ()
    #: Deliveries that were owed.
    listening: tuple[Listening, ...] = ()
    #: Nodes that misbehaved or were killed.
    faulty: tuple[str, ...] = ()
    #: What is to be measured, after the warm-up; 0 to 0 until the run has ended.
    from_ns: int = 0
    upto_ns: int = 0
    #: Events that the publishers who count posted.
    events: int = 0


class _Stamp(msgspec.Struct):
    """What a header of any format has."""

    format: int


def write_header(directory: Path, header: Header) -> None:
    """Put the header in place, or another in place of it."""
    text = msgspec.json.format(msgspec.json.encode(header), indent=2)
    with replacing(directory / HEADER) as draft:
        draft.write_bytes(text + b"\n")


def read_header(directory: Path) -> Header:
    """The header of a trace; a sentence if there is none to be had."""
    path = directory / HEADER
    try:
        text = path.read_bytes()
        written = msgspec.json.decode(text, type=_Stamp).format
        header = msgspec.json.decode(text, type=Header) if written == FORMAT else None
    except FileNotFoundError:
        raise UsageError(
            f"{directory} has no {HEADER}: name a directory that 'quorumcast bench --trace' or "
            "'quorumcast sim --trace' wrote"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} cannot be read ({error}): trace that run again") from None
    if header is None:
        raise UsageError(
            f"{path} has the format {written} and this version reads {FORMAT}: trace that run again"
        )
    return header


def run_of(directory: Path) -> str:
    """The run that is being traced into a directory; nameless if it has no header."""
    try:
        return read_header(directory).run
    except UsageError:
        return ""


def place_for(directory: Path) -> Path:
    """Where the next trace goes: here if nothing is here yet, else into a folder beside it."""
    place, turn = directory, 1
    while (place / HEADER).exists() or any(place.glob("*.parquet")):
        turn += 1
        place = directory / f"run-{turn}"
    place.mkdir(parents=True, exist_ok=True)
    return place
