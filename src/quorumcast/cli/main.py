"""The entry point: all commands, and how they fail.

A misused command ends with one sentence on standard error and exit code 2, whether the option
parser, our own code (`UsageError`) or the operating system finds the mistake. Ctrl-C ends with 130.
A traceback is a bug. Commands import their modules when they run, so that `quorumcast --help` is
fast.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from copy import copy
from functools import cache
from typing import Annotated

import typer

from quorumcast.cli.cell import channels, doctor, epochs, init, members, operations, running
from quorumcast.cli.clients import publish, replay, subscribe, subscriptions, verify
from quorumcast.cli.lab import bench, demo, sim
from quorumcast.cli.options import Commands
from quorumcast.cli.pipeline import commands as pipeline
from quorumcast.core.errors import UsageError
from quorumcast.core.version import __version__

USAGE_ERROR = 2
INTERRUPTED = 130

app = Commands(
    name="quorumcast",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start here:  quorumcast init cell && quorumcast up cell",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quorumcast {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version."),
    ] = False,
) -> None:
    """Publish/subscribe for people who cannot trust every broker."""


app.command("init", example=init.EXAMPLE)(init.init)
app.command("up", example=running.UP_EXAMPLE)(running.up)
app.command("broker", example=running.BROKER_EXAMPLE)(running.broker)
app.command("publish", example=publish.EXAMPLE)(publish.publish)
app.command("subscribe", example=subscribe.EXAMPLE)(subscribe.subscribe)
app.command("replay", example=replay.EXAMPLE)(replay.replay)
app.command("status", example=operations.STATUS_EXAMPLE)(operations.status)
app.command("doctor", example=doctor.EXAMPLE)(doctor.doctor)
app.add_typer(channels.app, name="channel")
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(members.app, name="members")
app.add_typer(operations.faults, name="faults")
app.add_typer(epochs.app, name="epoch")
app.command("verify", example=verify.EXAMPLE)(verify.verify)
app.command("sim", example=sim.EXAMPLE)(sim.sim)
app.command("bench", example=bench.EXAMPLE)(bench.bench)
app.add_typer(pipeline.app, name="pipeline")
app.command("demo", example=demo.EXAMPLE)(demo.demo)

#: The option parser's base error; its module depends on the version of Typer.
_ParserError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


def _fail(sentence: str, code: int = USAGE_ERROR) -> int:
    line = f"quorumcast: {' '.join(sentence.split())}"
    print(line.encode(errors="backslashreplace").decode(), file=sys.stderr)
    return code


@cache
def _command_tree(first: str) -> Callable[..., object]:
    """The command tree; only the branch `first`, if that is a command: all of it takes a while."""
    tree = copy(app)
    tree.registered_commands = [one for one in app.registered_commands if one.name == first]
    tree.registered_groups = [one for one in app.registered_groups if one.name == first]
    known = tree.registered_commands or tree.registered_groups
    return typer.main.get_command(tree if known else app)


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Arguments need not be UTF-8, and may be part of the output.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        command = _command_tree(next(iter(sys.argv[1:] if arguments is None else arguments), ""))
        code = command(arguments, standalone_mode=False, prog_name="quorumcast")
        sys.stdout.flush()
    except UsageError as error:
        return _fail(str(error))
    except _ParserError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(getattr(error, "message", ""))
            return USAGE_ERROR
        return _fail(_parser_sentence(error))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed the pipe; suppress the error of the final flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UnicodeEncodeError as error:
        return _fail(f"{error.object!r} is not UTF-8; only events may be other bytes")
    except OSError as error:
        return _fail(f"{error.strerror or error} ({error.filename or 'no file'})")
    return code if isinstance(code, int) else 0


def _parser_sentence(error: BaseException) -> str:
    message: str = getattr(error, "format_message", lambda: str(error))().rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "quorumcast"
    return f"{message}; see '{command} --help'"


def run() -> None:
    """The console script."""
    sys.exit(main())
