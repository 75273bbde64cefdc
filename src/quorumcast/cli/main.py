"""The entry point: the table of all commands, and how they fail.

Only the module of the command that runs is imported, and `quorumcast --help` needs none of them:
its text comes from the table. Modules of commands import what only some of their functions need
inside these functions.

A misused command ends with one sentence on standard error and exit code 2, whether the option
parser, our own code (`UsageError`) or the operating system finds the mistake. Ctrl-C ends with 130,
and SIGTERM ends a client with 143. A traceback is a bug.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from errno import ENOSPC
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from quorumcast.core.errors import UsageError, nearest
from quorumcast.core.version import __version__

if TYPE_CHECKING:
    from quorumcast.cli.options import Commands

USAGE_ERROR = 2
INTERRUPTED = 130

HELP_OPTIONS = ("-h", "--help")


class Entry(NamedTuple):
    """A command, or a group of commands."""

    #: The module below `quorumcast.cli`, and the name of the function or group in it.
    place: str
    #: The line of the command in `quorumcast --help`.
    summary: str


#: Every command by its name, in the sections of `quorumcast --help`.
SECTIONS: dict[str, dict[str, Entry]] = {
    "Run a cell": {
        "init": Entry("cell.init:init", "Create a cell: identities and a signed manifest."),
        "up": Entry("cell.running:up", "Run the brokers of a cell on this machine."),
        "broker": Entry("cell.running:broker", "Run one broker."),
        "restart": Entry("cell.restarting:restart", "Restart brokers of 'up', one at a time."),
        "backup": Entry("cell.backups:backup", "Copy a cell while it runs."),
        "restore": Entry("cell.backups:restore", "Make a cell from a backup."),
        "status": Entry("cell.operations:status", "Show the brokers of a cell."),
        "tree": Entry("tree.commands:app", "Make, run and show trees of cells."),
        "doctor": Entry("cell.doctor:doctor", "Check a cell, and say what to do."),
    },
    "Use a cell": {
        "publish": Entry("clients.publish:publish", "Publish events."),
        "subscribe": Entry("clients.subscribe:subscribe", "Print events as they arrive."),
        "replay": Entry("clients.replay:replay", "Print the events that brokers hold."),
        "subscriptions": Entry("clients.subscriptions:app", "Look at named subscriptions."),
        "verify": Entry("clients.verify:verify", "Check a receipt or evidence offline."),
    },
    "Change a cell while it runs": {
        "channel": Entry("cell.channels:app", "Show, create, change and delete channels."),
        "members": Entry("cell.members:app", "Show, add, remove and replace brokers."),
        "epoch": Entry("cell.epochs:app", "Show the manifest, or make its next epoch."),
        "faults": Entry("cell.operations:faults", "Make a broker lie, for tests."),
    },
    "Try and measure": {
        "demo": Entry("lab.demo:demo", "Watch a broker lie and be found out."),
        "sim": Entry("lab.sim:sim", "Simulate cells with crashes and liars, from seeds."),
        "bench": Entry("lab.bench:bench", "Measure real processes, and check every event."),
        "pipeline": Entry("pipeline.commands:app", "Streams, evaluation and audit on Spark."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


def command_tree(*names: str) -> Commands:
    """The commands of these names for the option parser; all of them without a name."""
    import typer

    from quorumcast.cli.options import Commands

    tree = Commands(
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": HELP_OPTIONS},
    )
    tree.callback()(lambda: None)  # a tree of one command is a group as well
    for name in names or COMMANDS:
        module, _, attribute = COMMANDS[name].place.partition(":")
        found = import_module(f"quorumcast.cli.{module}")
        command: Any = getattr(found, attribute)
        if isinstance(command, typer.Typer):
            tree.add_typer(command, name=name)
        else:
            own = f"{name.upper()}_EXAMPLE"  # in modules with several commands
            tree.command(name, example=getattr(found, own, "") or found.EXAMPLE)(command)
    return tree


@cache
def _parser(name: str) -> Callable[..., object]:
    import typer

    return typer.main.get_command(command_tree(name))


def overview() -> str:
    """The text of `quorumcast --help`."""
    width = max(map(len, COMMANDS))
    lines = [
        "Publish/subscribe for people who cannot trust every broker.",
        "",
        "Usage:  quorumcast COMMAND [ARGUMENTS]...",
    ]
    for title, section in SECTIONS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:{width}}  {entry.summary}" for name, entry in section.items()]
    return "\n".join(
        [
            *lines,
            "",
            "Options:",
            f"  {'--version':{width}}  Show the version.",
            f"  {'-h, --help':{width}}  Show this text; after a command, its arguments.",
            "",
            "Environment:",
            "  QUORUMCAST_MANIFEST  The default of -m, --manifest.",
            "  QUORUMCAST_IDENTITY  The default of -i, --identity.",
            "",
            "Start here:  quorumcast init cell && quorumcast up cell",
        ]
    )


def _fail(sentence: str, code: int = USAGE_ERROR) -> int:
    line = f"quorumcast: {' '.join(sentence.split())}"
    print(line.encode(errors="backslashreplace").decode(), file=sys.stderr)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit code."""
    if sys.stdout is None:  # closed, as by >&-
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the end of the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Arguments need not be UTF-8, and may be part of the output.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
    except UsageError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed the pipe; suppress the error of the final flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UnicodeEncodeError as error:
        return _fail(f"{error.object!r} is not UTF-8; only events may be other bytes")
    except OSError as error:
        if error.errno == ENOSPC and error.filename is None:
            return _fail(
                "the output cannot be written, because the disk is full: free some space, or write "
                "to another disk"
            )
        return _fail(f"{error.strerror or error} ({error.filename or 'no file'})")
    return code


def _run(words: list[str]) -> int:
    match words:
        case [name, *_] if name in COMMANDS:
            return _run_command(name, words)
        case ["--version", *_]:
            print(f"quorumcast {__version__}")
            return 0
        case [option, *_] if option in HELP_OPTIONS:
            print(overview())
            return 0
        case [word, *_]:
            raise UsageError(_unknown(word))
        case _:
            print(overview())
            return USAGE_ERROR


def _unknown(word: str) -> str:
    if word.startswith("-"):
        return f"No such option: {word}; see 'quorumcast --help'"
    near = nearest(word, COMMANDS)
    hint = f"; did you mean {near!r}?" if near else "; see 'quorumcast --help'"
    return f"No such command {word!r}{hint}"


def _run_command(name: str, words: list[str]) -> int:
    import typer

    # The option parser's base error; its module depends on the version of Typer.
    bases = typer.BadParameter.__mro__
    parser_error: type[Exception] = next(b for b in bases if b.__name__ == "ClickException")
    try:
        code = _parser(name)(words, standalone_mode=False, prog_name="quorumcast")
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # Typer turned it into exit code 1
            raise ended.__context__ from None
        raise
    except typer.Abort:
        return INTERRUPTED
    except parser_error as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(getattr(error, "message", ""))
            return USAGE_ERROR
        return _fail(_parser_sentence(error))
    return code if isinstance(code, int) else 0


def _parser_sentence(error: BaseException) -> str:
    message: str = getattr(error, "format_message", lambda: str(error))().rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "quorumcast"
    return f"{message}; see '{command} --help'"


def run() -> None:
    """The console script."""
    sys.exit(main())
