"""Traces of any size, made up: what an evaluation costs, and whether its figures are right.

python -m tests.support.synthetic_traces 1 2 5 10      millions of rows, and what they cost
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from quorumcast.traces.form import COLUMNS, Header, Listening, write_header

SCHEMA = pa.schema(list(COLUMNS.items()))
ROW_GROUP = 1_000_000


def synthesize(
    directory: Path,
    *,
    rows: int,
    run: str = "synthetic",
    policy: str = "ab",
    brokers: int = 4,
    subscribers: int = 2,
    channels: int = 2,
    fault: str = "",
    mean_ms: float = 2.0,
    lost: float = 0.0,
    by_history: float = 0.0,
    seed: int = 1,
) -> Header:
    """About that many rows: each publication to every broker, from there to every subscriber."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    per_publication = brokers + brokers * subscribers + subscribers
    count = max(rows // per_publication, 1)
    numbers = np.arange(count) // channels + 1
    channel = np.char.add("channel-", (np.arange(count) % channels + 1).astype(str))
    start = 1_000_000_000_000
    # 20,000 a second, of which the first tenth is warm-up.
    sent = start + np.arange(count) * 50_000
    header = Header(
        run=run, source="bench", version="0", system="cell",
        parameters={
            "policy": policy, "brokers": brokers, "alpha": 0, "publishers": 1, "batch": 1, "f": 1,
            "subscribers": subscribers, "channels": channels, "size": 56,
        },
        publishers=("publisher-1",), fault=fault,
        from_ns=int(sent[count // 10]), upto_ns=int(sent[-1]) + 1, events=count,
        listening=tuple(
            Listening(f"subscriber-{s + 1}", f"channel-{c + 1}")
            for s in range(subscribers) for c in range(channels)
        ),
    )  # fmt: skip

    def write(file: str, role: str, kind: str, columns: dict[str, object], length: int) -> None:
        filled = {
            "t_ns": sent, "role": role, "node": file, "kind": kind, "channel": channel,
            "publisher": "publisher-1", "incarnation": 7, "lane": 0, "number": numbers, "peer": "",
            "run": run, "place": 0, "hops": 0, "by_history": False, "bytes": 0, "message": "",
            **columns,
        }  # fmt: skip
        arrays = [
            pa.array(filled[name], field.type)
            if isinstance(filled[name], np.ndarray)
            else pa.repeat(pa.scalar(filled[name], field.type), length)
            for name, field in zip(COLUMNS, SCHEMA, strict=True)
        ]
        table = pa.table(arrays, schema=SCHEMA)
        pq.write_table(table, directory / f"{file}.parquet", row_group_size=ROW_GROUP)

    forwarding = rng.integers(100_000, 900_000, (brokers, count))
    for broker in range(brokers):
        name = f"broker-{broker + 1}"
        write(f"publisher-1.{broker}", "publisher", "published",
              {"node": "publisher-1", "t_ns": sent + broker * 700, "peer": name},
              count)  # fmt: skip
        for subscriber in range(subscribers):
            write(f"{name}.{subscriber}", "broker", "forwarded",
                  {"node": name, "t_ns": sent + forwarding[broker],
                   "peer": f"subscriber-{subscriber + 1}"}, count)  # fmt: skip
        write(f"{name}.sent", "broker", "sent",
              {"node": name, "t_ns": int(sent[-1]), "channel": "", "publisher": "",
               "incarnation": 0, "number": count * subscribers, "bytes": 90 * count * subscribers,
               "peer": "subscriber-1", "message": "Vote"}, 1)  # fmt: skip
    for subscriber in range(subscribers):
        name = f"subscriber-{subscriber + 1}"
        latency = (rng.gamma(2.0, mean_ms / 2, count) * 1e6).astype(np.int64) + 1000
        kept = rng.random(count) >= lost
        write(name, "subscriber", "accepted",
              {"t_ns": (sent + latency)[kept], "channel": channel[kept], "number": numbers[kept],
               "by_history": (rng.random(count) < by_history)[kept], "bytes": 56,
               "peer": "broker-1,broker-2,broker-3"}, int(kept.sum()))  # fmt: skip
    write_header(directory, header)
    return header


def main() -> None:
    from quorumcast.pipeline.evaluation.figures import sums
    from quorumcast.pipeline.evaluation.runs import find_traces
    from quorumcast.pipeline.session import spark_session

    spark = spark_session()
    spark.range(10).count()

    def processor_s() -> float:
        """Of Java: on a machine that others use, the clock on the wall says little."""
        times = [p.cpu_times() for p in psutil.Process().children(recursive=True)]
        return float(sum(t.user + t.system for t in times))

    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "warm"
        synthesize(small, rows=100_000)
        sums(spark, find_traces([small]))
        for millions in map(float, sys.argv[1:]):
            place = Path(folder) / f"{millions}"
            synthesize(place, rows=int(millions * 1e6))
            traces = find_traces([place])
            begin, used = time.perf_counter(), processor_s()
            sums(spark, traces)
            seconds, used = time.perf_counter() - begin, processor_s() - used
            print(
                f"{traces[0].rows:>12,} rows {seconds:7.2f} s, {used:7.2f} processor seconds, "
                f"{used / millions:.2f} per million",
                flush=True,
            )


if __name__ == "__main__":
    main()
