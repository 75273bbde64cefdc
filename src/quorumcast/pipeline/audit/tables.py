"""The tables that an audit reads and writes, and their schemas for Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumcast.watch.observation import CELL_COLUMNS, COLUMNS, DOCUMENT_COLUMNS, LABEL_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

_SPARK_TYPES = {
    "string": "string",
    "int64": "long",
    "int8": "byte",
    "binary": "binary",
    "double": "double",
}

#: One row per node and kind of deed.
VERDICT_COLUMNS = {
    "run": "string",
    "node": "string",
    "standing": "string",
    "score": "double",
    "deed": "string",
    "towards": "string",
    "reasons": "string",
    "count": "int64",
    "t_ms": "int64",
    "until_ms": "int64",
    "proof": "string",
    "explanations": "string",
}


def ddl(columns: dict[str, str]) -> str:
    """Return the Spark schema of a table."""
    return ", ".join(f"`{name}` {_SPARK_TYPES[kind]}" for name, kind in columns.items())


OBSERVATIONS, DOCUMENTS = ddl(COLUMNS), ddl(DOCUMENT_COLUMNS)
LABELS, VERDICTS, CELLS = ddl(LABEL_COLUMNS), ddl(VERDICT_COLUMNS), ddl(CELL_COLUMNS)

#: The columns by which observations are summed: all but times, number and count.
FEATURE_KEYS = (
    "run", "observer", "role", "accused", "kind", "reason", "message", "channel", "publisher",
    "lane", "bucket", "slot",
)  # fmt: skip


def empty_verdicts() -> pd.DataFrame:
    """Return an empty table of verdicts."""
    import pandas as pd

    return pd.DataFrame({name: [] for name in VERDICT_COLUMNS})
