"""How far a query is behind, by what Spark says of its progress."""

from types import SimpleNamespace
from typing import cast

from pyspark.sql.streaming.listener import StreamingQueryProgress

from quorumcast.pipeline.streams.progress import lag


def test_lag_is_the_difference_and_nothing_is_known_before_the_first_micro_batch() -> None:
    ours = SimpleNamespace(endOffset='{"orders": 4}', latestOffset='{"orders": 7, "new": 2}')
    others = SimpleNamespace(endOffset="12", latestOffset=None)
    progress = SimpleNamespace(sources=[ours, others])
    assert lag(cast(StreamingQueryProgress, progress)) == {"orders": 3}
    assert lag(None) == {}
