"""Options of `publish` and `subscribe` that make a client misbehave, for tests.

A client needs nobody's leave to lie, and brokers withstand it. The commands still ask for leave, as
those for brokers do, so that nobody disturbs a cell in production by mistake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from quorumcast.cli.common import ask, console
from quorumcast.cli.options import (
    CellOptions,
    PercentOption,
    StatusOptions,
    UrlOption,
    VictimOption,
)
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.client.node import Node


class MisbehaviourOptions(msgspec.Struct, kw_only=True):
    """What a client does wrong."""

    fault: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="For tests: misbehave; the names are in 'faults list'. Only in a cell whose "
            "brokers run with --allow-faults.",
        ),
    ] = ""
    percent: PercentOption = 100
    victim: VictimOption = None
    url: UrlOption = None

    def check(self, role: str, where: CellOptions) -> None:
        """Raise UsageError unless a publisher, or a subscriber, may misbehave in this way."""
        if not self.fault:
            if self.percent != 100 or self.victim or self.url:
                raise UsageError("--percent, --victim and --url go with --fault; name a fault")
            return
        from quorumcast.faults.cell.catalogue import check_fault, check_victims
        from quorumcast.faults.cell.entry import Role

        check_fault(self.fault, Role(role))
        cell = where.read()
        check_victims(self.victim or (), cell)
        status = StatusOptions(manifest=where.manifest, url=self.url)
        urls = status.urls(cell)
        up = [name for name, row in status.ask(cell).items() if row["up"]]
        enough = cell.quorums.responders
        if len(up) < enough:
            raise UsageError(
                f"{len(up)} status pages of brokers answer, and {enough} of them must say that "
                "faults are allowed; start the cell with 'quorumcast up --allow-faults', or say "
                "where they are with --url"
            )
        refusing = [name for name in up if not ask(f"{urls[name]}/faults")["allowed"]]
        if refusing:
            raise UsageError(
                f"{', '.join(refusing)} of this cell run without --allow-faults: clients misbehave "
                "on request only in cells for tests"
            )

    def begin(self, node: Node) -> None:
        """Make a connected client misbehave, if there is a fault."""
        if not self.fault:
            return
        from quorumcast.testing.lying import make_client_lie

        make_client_lie(node, self.fault, percent=self.percent, victims=self.victim or ())
        console(stderr=True).print(f"{node.name} misbehaves: {self.fault}", markup=False)
