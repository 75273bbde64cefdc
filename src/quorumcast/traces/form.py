"""The format of a trace: Parquet files in a directory, and a header that describes the run.

    DIR/trace.json       the scenario: which system with which parameters, and what was expected
    DIR/*.parquet        rows of `COLUMNS`, one or more files per node

Six kinds of rows; a row group of a file holds rows of one kind:

    published    a publisher sent a publication of its own to `peer`
    passed_on    a node other than the publisher sent it on to `peer`, no subscriber
    forwarded    a broker vouched for a publication, or some rows of it, to the subscriber `peer`
    accepted     a subscriber accepted it; `peer` names the brokers that voted, with commas
    passed       a subscriber passed over it, rightly: it has nothing that was asked for
    sent         `number` messages of the type `message` with `bytes` bytes in all went to `peer`
                 since the last row for the same node, type and peer

Each system names the roles of its nodes. Times of real processes are of the monotonic clock, which
all processes of one machine share; a simulated run has virtual time.
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
    # The number of the publication; in `sent` rows, how many messages.
    "number": "int64",
    "peer": "string",
    # The name of the execution that was traced, as in the header.
    "run": "string",
    # The sender's place in a chain, from 1; 0 where there is none.
    "place": "int8",
    # The number of messages on the path of a publication; 0 where a system does not say.
    "hops": "int16",
    # Whether a history and not the fast path led to the acceptance.
    "by_history": "bool",
    # Size of the accepted contents, or of the sent messages without headers and MACs of packets.
    "bytes": "int64",
    "message": "string",
}

#: Incremented when the meaning of a trace changes: `read_header` takes no other format.
FORMAT = 4
HEADER = "trace.json"

BENCH, SIMULATOR = "bench", "sim"

Parameter = bool | int | float | str


class Listening(msgspec.Struct, frozen=True):
    """A subscriber that must get everything published on a channel from a time on.

    Not what its predicates leave out: of that there are rows `passed`.
    """

    node: str
    channel: str
    since_ns: int = 0


class ProcessUse(msgspec.Struct, frozen=True):
    """What the process of a node used while it was measured."""

    role: str
    #: Processor seconds, and their share of one processor.
    cpu_s: float
    processors: float
    #: Resident memory at the end.
    memory_mb: float


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
    #: Its parameters, the most important first. Runs with equal parameters are one scenario.
    parameters: dict[str, Parameter] = {}
    #: Parameters that a seed drew, in which runs of one scenario may differ.
    drawn: dict[str, Parameter] = {}
    fault: str = ""
    #: Of the simulator.
    seed: int | None = None
    #: Publishers whose publications count; those of faulty publishers do not.
    publishers: tuple[str, ...] = ()
    #: Subscribers to whom deliveries are owed.
    listening: tuple[Listening, ...] = ()
    #: Nodes that misbehaved or were killed.
    faulty: tuple[str, ...] = ()
    #: The measured interval, after the warm-up; 0 to 0 until the run has ended.
    from_ns: int = 0
    upto_ns: int = 0
    #: Events posted by `publishers`.
    events: int = 0
    #: What each node's process used in that interval; empty where nodes are no processes.
    processes: dict[str, ProcessUse] = {}


class _AnyHeader(msgspec.Struct):
    """The field that a header of any format has."""

    format: int


def write_header(directory: Path, header: Header) -> None:
    """Write or replace the header of a trace."""
    text = msgspec.json.format(msgspec.json.encode(header), indent=2)
    with replacing(directory / HEADER) as draft:
        draft.write_bytes(text + b"\n")


def read_header(directory: Path) -> Header:
    """The header of a trace."""
    path = directory / HEADER
    try:
        text = path.read_bytes()
        written = msgspec.json.decode(text, type=_AnyHeader).format
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
    """The name of the run in a directory; empty if no header can be read."""
    try:
        return read_header(directory).run
    except UsageError:
        return ""


def place_for(directory: Path) -> Path:
    """The directory for the next trace: this one, or the first of run-2, run-3, … in it
    if it holds a trace already."""
    place, turn = directory, 1
    while (place / HEADER).exists() or any(place.glob("*.parquet")):
        turn += 1
        place = directory / f"run-{turn}"
    place.mkdir(parents=True, exist_ok=True)
    return place
