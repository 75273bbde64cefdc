"""`sql` is `pyspark.sql.functions`, imported at its first use.

PySpark is optional and slow to import. Modules that use `sql` can be imported without it, so that
`spark_session` can say what to install.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import functions as sql
else:

    class _Functions:
        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("pyspark.sql.functions"), name)

    sql = _Functions()

__all__ = ["sql"]
