"""The tables that an audit reads and writes, and their schemas for Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumcast.watch.observation import (
    CELL_COLUMNS,
    COLUMNS,
    DOCUMENT_COLUMNS,
    LABEL_COLUMNS,
)

if TYPE_CHECKING:
    import pandas as pd

_SPARK_TYPES = {
    "string": "string",
    "int64": "long",
    "int8": "byte",
    "binary": "binary",
    "double": "double",
}

#: One row per node that is proven, suspected or disputed, and per kind of deed.
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
    """A table's schema in Spark's words."""
    return ", ".join(f"`{name}` {_SPARK_TYPES[kind]}" for name, kind in columns.items())


OBSERVATIONS, DOCUMENTS = ddl(COLUMNS), ddl(DOCUMENT_COLUMNS)
LABELS, VERDICTS, CELLS = ddl(LABEL_COLUMNS), ddl(VERDICT_COLUMNS), ddl(CELL_COLUMNS)

#: What a feature is grouped by: everything but when, which number and how often.
FEATURE_KEYS = (
    "run",
    "observer",
    "role",
    "accused",
    "kind",
    "reason",
    "message",
    "channel",
    "publisher",
    "lane",
    "bucket",
    "slot",
)


def empty_verdicts() -> pd.DataFrame:
    """No verdict at all."""
    import pandas as pd

    return pd.DataFrame({name: [] for name in VERDICT_COLUMNS})
