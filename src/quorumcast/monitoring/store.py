"""The store: Parquet files of observations by channel, host and day, each batch exactly once.

The files of a batch are named by its number, so a batch that is replayed after a crash writes the
same files again. Any tool reads the directory as it is. The files of a day become one per
channel and host once no more are expected. Names of hosts are safe in paths: `clean` lets no
others through.

    observations/channel=metrics/host=web-1/day=2026-11-15/batch-000000000042.parquet
    fresh/000000000042.parquet            the same rows, for the query that watches; it removes them
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quorumcast.traces.drafts import replacing

PARTITIONS = ("channel", "host", "day")
#: Rows of a day may still come late: its files become one so many days after it.
GRACE_DAYS = 2
_BATCH = "batch-"
_WHOLE, _UNDER_WAY = "day.parquet", "_day.parquet"


class Store:
    """A directory of observations."""

    def __init__(self, directory: Path) -> None:
        self.observations = directory / "observations"
        self.fresh = directory / "fresh"
        for path in (self.observations, self.fresh):
            path.mkdir(parents=True, exist_ok=True)

    def keep(self, rows: pa.Table, batch: int) -> None:
        """Write the rows of a batch; again if it comes again."""
        if rows.num_rows == 0:
            return
        for part in _parts(rows):
            first = part.select(PARTITIONS).slice(0, 1).to_pylist()[0]
            folder = self.observations
            for name in PARTITIONS:
                folder /= f"{name}={first[name]}"
            folder.mkdir(parents=True, exist_ok=True)
            _write(part.drop_columns(list(PARTITIONS)), folder / f"{_BATCH}{batch:012d}.parquet")
        _write(rows, self.fresh / f"{batch:012d}.parquet")

    def compact(self, today: date, before: int) -> int:
        """Make one file of the many of each day that is over; how many were made.

        Only of batches before this one, which are never replayed.
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
            if len(batches) > 1 or (folder / _UNDER_WAY).exists():
                _unite(folder, batches)
                made += 1
        return made


def _parts(rows: pa.Table) -> list[pa.Table]:
    """The rows of each channel, host and day."""
    keys = rows.select(PARTITIONS).group_by(list(PARTITIONS)).aggregate([]).to_pylist()
    parts = []
    for key in keys:
        mask = None
        for name, value in key.items():
            same = pc.equal(rows.column(name), pa.scalar(value, rows.schema.field(name).type))
            mask = same if mask is None else pc.and_(mask, same)
        parts.append(rows.filter(mask))
    return parts


def _unite(folder: Path, batches: list[Path]) -> None:
    """The files of one day as one.

    Readers pass over names with an underscore: for a moment they see fewer rows, never rows twice.
    The file under way is whole as soon as it has its name, so whoever finds one goes on from there.
    """
    whole, under_way = folder / _WHOLE, folder / _UNDER_WAY
    if under_way.exists():
        made = under_way.stat().st_mtime_ns
        batches = [path for path in batches if path.stat().st_mtime_ns < made]
    else:
        old = [whole] if whole.exists() else []
        tables = [pq.read_table(path, partitioning=None) for path in (*old, *batches)]
        _write(pa.concat_tables(tables), under_way)
    for path in batches:
        path.unlink()
    under_way.replace(whole)


def _write(rows: pa.Table, path: Path) -> None:
    with replacing(path) as draft:
        pq.write_table(rows, draft, compression="zstd", coerce_timestamps="us")
