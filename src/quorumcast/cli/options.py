"""Options that several commands share, each declared once, and the commands that take them.

A parameter of a command may be one of the structs below: the command then has the fields of the
struct as its options. The struct also does what all these commands do with the options, such as
finding the manifest, asking the brokers or connecting.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import msgspec
import typer

from quorumcast.cell import CELL_SYSTEM
from quorumcast.cli.common import Rows, ask_cell, console, status_urls
from quorumcast.core.errors import UsageError
from quorumcast.manifest.paths import identity_path, manifest_path

if TYPE_CHECKING:
    from quorumcast.client.node import Node
    from quorumcast.manifest.manifest import Manifest

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
WaitForRunningOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until running brokers have taken it.")
]
RetainOption = Annotated[
    list[str] | None,
    typer.Option(
        "--retain",
        metavar="AGE|SIZE|COUNT|everything",
        help="How much to keep, such as 7d, 1GB or 100000 (publications); may be repeated: the "
        "first limit that is reached applies.",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master", envvar="SPARK_MASTER", help="Spark's master; all cores of this machine if none."
    ),
]
ObserveOption = Annotated[
    Path | None,
    typer.Option(
        "--observe",
        metavar="DIR",
        help="Write observations of nodes here, for 'pipeline audit'.",
    ),
]
UrlOption = Annotated[
    list[str] | None,
    typer.Option(
        "--url", help="BROKER=http://HOST:PORT of a status page that is not on this machine."
    ),
]


def _percent(percent: int) -> int:
    if not 1 <= percent <= 100:
        raise UsageError("--percent is 1 to 100")
    return percent


PercentOption = Annotated[
    int, typer.Option(callback=_percent, help="Percentage of messages that the fault affects.")
]
VictimOption = Annotated[
    list[str] | None, typer.Option(help="A node or channel to aim at; may be repeated.")
]
OperatorOption = Annotated[
    Path | None,
    typer.Option("--operator", help="The operator's identity; beside the manifest by default."),
]


def _timeout(seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise UsageError(f"--timeout is {seconds:g}: give a number of seconds, 0 or more")
    return seconds


class CellOptions(msgspec.Struct, kw_only=True):
    """The cell that a command is about."""

    manifest: Annotated[
        Path,
        typer.Option(
            "--manifest",
            "-m",
            envvar="QUORUMCAST_MANIFEST",
            help="The cell's manifest, or the directory that 'init' made.",
        ),
    ] = Path()

    @property
    def path(self) -> Path:
        """The manifest file."""
        return manifest_path(self.manifest)

    def read(self) -> Manifest:
        """Read the manifest."""
        from quorumcast.manifest.files import read_manifest

        return read_manifest(self.path)


class IdentityOptions(CellOptions, kw_only=True):
    """A cell, and who runs the command."""

    identity: Annotated[
        str,
        typer.Option(
            "--identity",
            "-i",
            envvar="QUORUMCAST_IDENTITY",
            help="Who you are: an identity file, or a name whose identity lies beside the "
            "manifest.",
        ),
    ] = ""

    def identity_file(self, *, of_broker: bool = False) -> Path:
        """The identity file."""
        return identity_path(self.identity, self.path, of_broker=of_broker)


class ClientOptions(IdentityOptions, kw_only=True):
    """How a client connects."""

    timeout: Annotated[
        float,
        typer.Option("--timeout", callback=_timeout, help="Seconds to wait for enough brokers."),
    ] = 30.0

    async def connect(self, *, observe: Path | None = None, seat: int = 0) -> Node:
        """Connect to the cell; standard error says when it is unreachable, lost and back."""
        from quorumcast.client.node import connect

        def tell(sentence: str) -> None:
            console(stderr=True).print(sentence, markup=False, soft_wrap=True)

        return await connect(
            self.path,
            self.identity_file(),
            timeout_s=self.timeout,
            observe=observe,
            seat=seat,
            on_reach=tell,
        )

    def too_few(self, channel: str, node: Node) -> UsageError:
        """The error for a channel on which too few brokers answer in time."""
        return UsageError(
            f"too few brokers answered on {channel!r} within {self.timeout:g} s; "
            f"{node.describe_brokers()}; see 'quorumcast status'"
        )


class StatusOptions(CellOptions, kw_only=True):
    """A cell, and the status pages of its brokers."""

    url: UrlOption = None

    def urls(self, cell: Manifest) -> dict[str, str]:
        """The URL of each broker's status page."""
        return status_urls(cell, self.url)

    def ask(self, cell: Manifest) -> Rows:
        """The status of each broker."""
        return ask_cell(cell, self.urls(cell))


class OperatorOptions(StatusOptions, kw_only=True):
    """A cell whose operator signs its next epoch, and the status pages of its brokers."""

    operator: OperatorOption = None


ALL = "all"


class ScenarioOptions(msgspec.Struct, kw_only=True):
    """Which scenarios are simulated."""

    start: Annotated[int, typer.Option(help="The first seed.")] = 0
    system: Annotated[
        str,
        typer.Option(help="What is simulated: cell, tree, or one of yours as package.module:NAME."),
    ] = CELL_SYSTEM
    policy: Annotated[
        str,
        typer.Option(
            help="A policy by name, or all of a cell; relay and relay-total are of trees of cells."
        ),
    ] = ALL
    adversary: Annotated[str, typer.Option(help="A fault by name, or all of them.")] = ALL

    @property
    def one_system(self) -> str:
        """The system: that of the policy, if it is not a cell's."""
        from quorumcast.sim.systems import system_of

        return system_of(self.system, self.one_policy)

    @property
    def one_policy(self) -> str | None:
        """The policy; None for all of them."""
        return None if self.policy == ALL else self.policy

    @property
    def one_adversary(self) -> str | None:
        """The adversary; None for all of them."""
        return None if self.adversary == ALL else self.adversary


class Commands(typer.Typer):
    """A group of commands, each with an example below its help.

    Help is printed as it is written: as markup, [us] would be a style and :ab: an emoji.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(rich_markup_mode=None, short_help=settings.get("help"), **settings)

    def command(  # type: ignore[override]
        self, name: str | None = None, *, example: str, **settings: Any
    ) -> Callable[[CommandT], CommandT]:
        """Add a function as a command; `example` is a call of it without the program's name."""

        def add(function: CommandT) -> CommandT:
            # The list of commands shows the first paragraph; the parser would cut it.
            summary, *_ = inspect.cleandoc(settings.get("help") or function.__doc__ or "").split(
                "\n\n"
            )
            epilog = f"Example:  quorumcast {example}"
            register = super(Commands, self).command(
                name, short_help=summary, epilog=epilog, **settings
            )
            register(_expanded(function))
            return function

        return add


def _expanded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the fields of structs as parameters, behind its own ones."""
    kinds = get_type_hints(function, include_extras=True)
    structs = {
        name: kind
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    }
    own = inspect.signature(function).parameters
    parameters = [parameter for name, parameter in own.items() if name not in structs]
    for struct in structs.values():
        kinds |= get_type_hints(struct, include_extras=True)
        parameters += inspect.signature(struct).parameters.values()
    parameters.sort(key=lambda parameter: parameter.name == "json_")  # the last one in the help

    @functools.wraps(function)
    def call(**given: Any) -> Any:
        for name, struct in structs.items():
            fields = {field: given.pop(field) for field in struct.__struct_fields__}
            given[name] = struct(**fields)
        return function(**given)

    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=p.KEYWORD_ONLY, annotation=kinds[p.name]) for p in parameters]
    )
    call.__annotations__ = {p.name: kinds[p.name] for p in parameters}
    return call
