"""A channel as a table, for `spark-submit` or plain Python.

    python examples/spark_table.py CELL IDENTITY CHANNEL OUTPUT
    examples/spark_cluster.sh spark-submit examples/spark_table.py CELL IDENTITY CHANNEL OUTPUT

CELL is the directory that `quorumcast init` made, OUTPUT gets Parquet files. Executors count the
votes of the brokers; what reaches the table is what was published.
"""

import sys

from quorumcast.pipeline.session import spark_session


def main(cell: str, identity: str, channel: str, output: str) -> None:
    """Read all that the cell still holds of a channel."""
    spark = spark_session("orders into a table")
    rows = (
        spark.read.format("quorumcast")
        .option("manifest", cell)
        .option("identity", identity)
        .option("channel", channel)
        .option("startingOffsets", "earliest")
        .load()
    )
    rows.write.mode("overwrite").parquet(output)
    print(f"{spark.read.parquet(output).count():,} rows of {channel} in {output}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
