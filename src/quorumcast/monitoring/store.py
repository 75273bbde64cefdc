"""The store: Parquet files of observations by channel, host and day, each batch exactly once.

The files of a batch are named by its number, so a batch that is replayed after a crash overwrites
its own files. Any Parquet tool can read the directory. The files of a day are compacted to one per
channel and host when no more are expected. `clean` ensures that host names are safe in paths.

    observations/channel=metrics/host=web-1/day=2026-11-15/batch-000000000042.parquet
    fresh/000000000042.parquet            the same rows, for the query `watch`, which deletes them
"""

from __future__ import annotations

from datetime import date, timedelta
from functools import reduce
from operator import and_
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quorumcast.traces.drafts import replacing

PARTITIONS = ("channel", "host", "day")
#: Days before the files of a day are compacted, for late rows.
GRACE_DAYS = 2
_BATCH = "batch-"
_COMPACTED, _DRAFT = "day.parquet", "_day.parquet"


class ObservationStore:
    """The directory of observations."""

    def __init__(self, directory: Path) -> None:
        self.observations = directory / "observations"
        self.fresh = directory / "fresh"
        for path in (self.observations, self.fresh):
            path.mkdir(parents=True, exist_ok=True)

    def keep(self, rows: pa.Table, batch: int) -> None:
        """Write the rows of a batch; idempotent."""
        if rows.num_rows == 0:
            return
        for key in rows.group_by(list(PARTITIONS)).aggregate([]).to_pylist():
            part = rows.filter(reduce(and_, (pc.field(name) == key[name] for name in PARTITIONS)))
            folder = self.observations.joinpath(*(f"{name}={key[name]}" for name in PARTITIONS))
            folder.mkdir(parents=True, exist_ok=True)
            _write(part.drop_columns(list(PARTITIONS)), folder / f"{_BATCH}{batch:012d}.parquet")
        _write(rows, self.fresh / f"{batch:012d}.parquet")

    def compact(self, today: date, before: int) -> int:
        """Compact the files of each past day to one; return the number of days.

        Only files of batches `before` this one, because later batches may be replayed.
        """
        made = 0
        for folder in sorted(self.observations.glob("channel=*/host=*/day=*")):
            if folder.name.removeprefix("day=") > (today - timedelta(GRACE_DAYS)).isoformat():
                continue
            batches = [
                path
                for path in sorted(folder.glob(f"{_BATCH}*.parquet"))
                if int(path.stem.removeprefix(_BATCH)) < before
            ]
            if len(batches) > 1 or (folder / _DRAFT).exists():
                _compact_day(folder, batches)
                made += 1
        return made


def _compact_day(folder: Path, batches: list[Path]) -> None:
    """Replace the files of one day by one.

    Readers ignore names with an underscore: for a moment they see fewer rows, but no duplicates.
    The draft is complete as soon as it has its name, so a restart continues from an existing draft.
    """
    whole, draft = folder / _COMPACTED, folder / _DRAFT
    if draft.exists():
        made = draft.stat().st_mtime_ns
        batches = [path for path in batches if path.stat().st_mtime_ns < made]
    else:
        old = [whole] if whole.exists() else []
        tables = [pq.read_table(path, partitioning=None) for path in (*old, *batches)]
        _write(pa.concat_tables(tables), draft)
    for path in batches:
        path.unlink()
    draft.replace(whole)


def _write(rows: pa.Table, path: Path) -> None:
    with replacing(path) as draft:
        pq.write_table(rows, draft, compression="zstd", coerce_timestamps="us")
