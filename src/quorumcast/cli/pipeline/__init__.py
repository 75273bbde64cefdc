"""`quorumcast pipeline …`: jobs that run on Spark; each command in a module of its own."""

from __future__ import annotations

from typing import Annotated

import typer

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master", envvar="SPARK_MASTER", help="Spark's master; all cores of this machine if none."
    ),
]
