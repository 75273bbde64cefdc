"""Finds the traces to evaluate; raises `UsageError` for directories and files that are none."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from quorumcast.cell import CELL_SYSTEM
from quorumcast.core.errors import UsageError
from quorumcast.pipeline.evaluation.cells import cell_of
from quorumcast.pipeline.session import first_line
from quorumcast.traces.form import COLUMNS, HEADER, Header, read_header


class Trace(msgspec.Struct, frozen=True):
    """One run on disk."""

    directory: Path
    header: Header
    #: Rows in all of its files.
    rows: int


def find_traces(places: Iterable[Path]) -> list[Trace]:
    """Return the traces in these directories and below, checked."""
    found: dict[Path, Trace] = {}
    for place in places:
        if not place.is_dir():
            raise UsageError(f"{place} is no directory: name one that holds a trace")
        headers = sorted(place.rglob(HEADER))
        if not headers:
            raise UsageError(
                f"{place} holds no trace: name a directory that 'quorumcast bench --trace' or "
                "'quorumcast sim --trace' wrote"
            )
        for header in headers:
            directory = header.parent.resolve()
            if directory not in found:
                found[directory] = _checked(directory)
    seen: dict[str, Path] = {}
    for trace in found.values():
        twin = seen.setdefault(trace.header.run, trace.directory)
        if twin != trace.directory:
            raise UsageError(
                f"{twin} and {trace.directory} are traces of one and the same run: name one of them"
            )
    return list(found.values())


def _checked(directory: Path) -> Trace:
    header = read_header(directory)
    if header.system == CELL_SYSTEM:
        try:
            cell_of(header.parameters)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"{directory / HEADER} does not describe a cell ({error}): trace that run again"
            ) from None
    if header.upto_ns <= header.from_ns:
        raise UsageError(f"the run traced in {directory} did not come to its end: run it again")
    files = sorted(directory.glob("*.parquet"))
    if not files:
        raise UsageError(f"{directory} has a {HEADER} and no Parquet file: trace that run again")
    rows = sum(_rows_of(file, header.run) for file in files)
    if not rows:
        raise UsageError(f"the trace in {directory} is empty: trace that run again")
    return Trace(directory, header, rows)


def _rows_of(file: Path, run: str) -> int:
    """Check by its footer that a file belongs to this run; return its number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            footer, schema = opened.metadata, opened.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{file} is damaged ({first_line(error)}): trace that run again") from None
    if {field.name: str(field.type) for field in schema} != COLUMNS:
        raise UsageError(
            f"{file} does not have the columns of a trace: it does not belong here, or another "
            "version wrote it"
        )
    column = list(COLUMNS).index("run")
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(column).statistics
        if statistics is not None and {statistics.min, statistics.max} != {run}:
            raise UsageError(f"{file} belongs to another run than {HEADER} beside it: move it away")
    return int(footer.num_rows)
