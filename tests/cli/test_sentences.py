"""What Spark raises, as one sentence that says what went wrong."""

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from quorumcast.cli.pipeline.sentences import sentences
from quorumcast.core.errors import UsageError

JAVA = """An error occurred while calling o47.range. Trace:
java.lang.NumberFormatException: For input string: "1000"
\tat java.base/java.lang.Long.parseLong(Long.java:711)
"""
PYTHON = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "files.py", line 82, in make_all
    yield make(np.asarray(batch.column(0)))
          ^^^^
OverflowError: Python integer 99999999999 out of bounds for int32
 SQLSTATE: 38000
"""
BOTH = """An error occurred while calling o99.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "files.py", line 82, in make_all
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""
CAUSED = """An error occurred while calling o99.parquet.
: org.apache.spark.SparkException: Could not read footer
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
Caused by: java.lang.RuntimeException: a.parquet is not a Parquet file
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (JAVA, 'Spark refuses: For input string: "1000"'),
        (
            PYTHON,
            "Spark refuses: OverflowError: Python integer 99999999999 out of bounds for int32",
        ),
        (BOTH, "Spark refuses: ZeroDivisionError: division by zero"),
        (
            CAUSED,
            "Spark refuses: Could not read footer (RuntimeException: a.parquet is not a Parquet "
            "file)",
        ),
        ("[PATH_NOT_FOUND] It is gone.\nMore.", "Spark refuses: [PATH_NOT_FOUND] It is gone."),
    ],
)
@pytest.mark.parametrize("kind", [Py4JError, PySparkException])
def test_sentence_says_what_went_wrong(kind: type[Exception], text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused, sentences():
        raise kind(text)
    assert str(refused.value) == sentence
