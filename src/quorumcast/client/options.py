"""The options of publishers and subscriptions, each declared once.

A field of one of these structs is an option: its type, default and meaning; `__post_init__` checks
the values. `takes` turns the fields into the keyword arguments of a method, of the asyncio client
and of the blocking one. The command line has the texts of its help from here (`meaning`), so this
module must be quick to import.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from quorumcast.client.arguments import (
    LATEST,
    Start,
    check_counts,
    check_overflow,
    check_timeout,
    check_times,
    check_validity,
    check_where,
    time_of_resumed,
)
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import MAX_LINE, MAX_LINE_EPOCH, resumable
from quorumcast.core.limits import MAX_NAME, Overflow

AUTO, MANUAL = "auto", "manual"

P = ParamSpec("P")
SelfT = TypeVar("SelfT")
OptionsT = TypeVar("OptionsT")
ResultT = TypeVar("ResultT")


class Resumption(msgspec.Struct, frozen=True):
    """The identity of a resumed stream; a later epoch of a name ends the earlier ones."""

    name: str
    epoch: int
    #: Time of its publications, unless `post_batch` gives another.
    at: datetime

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError("a resumed publisher needs a name: give the same in every run")
        if type(self.epoch) is not int or not 0 <= self.epoch <= MAX_LINE_EPOCH:
            raise UsageError(
                f"epoch is {self.epoch!r}: give a whole number from 0 to {MAX_LINE_EPOCH:,}"
            )
        time_of_resumed(self.at)

    @property
    def incarnation(self) -> int:
        """The incarnation of the stream: a hash of the name, and the epoch."""
        line = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "big") & MAX_LINE
        return resumable(line, self.epoch)


class _ChannelOptions(msgspec.Struct, frozen=True):
    channel: Annotated[str, Meta(description="The channel.")]

    def call(self, method: Callable[..., ResultT]) -> ResultT:
        """Call a method with these options as arguments."""
        return method(**msgspec.structs.asdict(self))


class PublisherOptions(_ChannelOptions, frozen=True, kw_only=True):
    """The options of `Node.publisher`."""

    batching: Annotated[
        bool, Meta(description="Pack events that wait together into one publication.")
    ] = True
    max_batch: Annotated[int, Meta(description="Events in one publication, at most.")] = 4096
    linger_ms: Annotated[
        float, Meta(description="How long an idle publisher waits for more events.")
    ] = 0.0
    buffer: Annotated[int, Meta(description="Events that may wait here, at most.")] = 65_536
    buffer_bytes: Annotated[int, Meta(description="Their bytes, about.")] = 64 * 1024 * 1024
    timeout_s: Annotated[
        float | None,
        Meta(description="How long `publish` and `flush` wait for acknowledgement; None: forever."),
    ] = None
    valid_for_s: Annotated[
        float | None,
        Meta(
            description="Subscribers skip events older than this; 0: never; if left out, as the "
            "channel says."
        ),
    ] = None
    urgent: Annotated[
        bool, Meta(description="Overtake what this node's other publishers publish.")
    ] = False
    resume: Annotated[
        Resumption | None,
        Meta(
            description="Resume the stream of this name and epoch; see "
            "`client.publishing.resuming`."
        ),
    ] = None

    def __post_init__(self) -> None:
        check_counts(max_batch=self.max_batch, buffer=self.buffer, buffer_bytes=self.buffer_bytes)
        check_times(linger_ms=self.linger_ms)
        check_timeout(self.timeout_s)
        check_validity(self.valid_for_s)


class SubscriptionOptions(_ChannelOptions, frozen=True, kw_only=True):
    """The options of `Node.subscribe`.

    `channel` may be a pattern, such as "plant/*/temp" or "plant/**"; it includes channels that are
    created later.
    """

    start: Annotated[
        Start,
        Meta(
            description="'latest' (publications from now on), 'earliest' (everything that brokers "
            "hold), an aware datetime (the first publication at or after it), or, with total "
            "order, a position."
        ),
    ] = LATEST
    until: Annotated[
        int | None,
        Meta(
            description="A position before which it ends; it waits for those that do not exist "
            "yet. Brokers send nothing from there on, and each publication waits for the votes of "
            "all reachable brokers."
        ),
    ] = None
    queue: Annotated[
        int | None,
        Meta(description="Publications that may wait to be taken; else as the channel says."),
    ] = None
    queue_bytes: Annotated[int, Meta(description="Their bytes, about.")] = 64 * 1024 * 1024
    overflow: Annotated[
        str | Overflow | None,
        Meta(
            description="When they are more: 'wait' reads no more from brokers, 'oldest' and "
            "'newest' discard a publication and leave a gap; else as the channel says."
        ),
    ] = None
    expired: Annotated[bool, Meta(description="Include expired publications.")] = False
    where: Annotated[
        str | Sequence[str] | None,
        Meta(
            description="A predicate on the columns, such as \"price < 10 and symbol = 'CTT'\": "
            "the rows that match come, and no others. May be several: a row then matches one or "
            "more."
        ),
    ] = None

    def __post_init__(self) -> None:
        check_where(self.where)
        check_counts(queue=1 if self.queue is None else self.queue, queue_bytes=self.queue_bytes)
        if self.overflow is not None:
            check_overflow(self.overflow)


class _NamedChannelOptions(_ChannelOptions, frozen=True):
    name: Annotated[str, Meta(description="The name of the subscription.")]


class NamedSubscriptionOptions(_NamedChannelOptions, frozen=True, kw_only=True):
    """The options of `Node.subscribe_as`.

    The last three are for private subscriptions; the manifest has those of shared ones.
    """

    start: Annotated[Start, Meta(description="Where its first use begins.")] = LATEST
    anew: Annotated[bool, Meta(description="Begin it again, at `start`.")] = False
    ack: Annotated[
        str,
        Meta(description="'auto': taking the next delivery acknowledges the previous one."),
    ] = MANUAL
    prefetch: Annotated[int, Meta(description="Publications claimed ahead, at most.")] = 32
    ack_timeout_s: Annotated[
        float | None, Meta(description="Silence that ends a session; 30 s by default.")
    ] = None
    max_attempts: Annotated[
        int | None, Meta(description="Attempts per publication; 0, the default, has no end.")
    ] = None
    dead_letter: Annotated[
        str | None, Meta(description="The channel for publications that are given up.")
    ] = None
    where: Annotated[
        str | None, Meta(description="Refused: a named subscription takes whole publications.")
    ] = None

    def __post_init__(self) -> None:
        from quorumcast.named.operations import MAX_CLAIMED

        check_counts(prefetch=self.prefetch)
        if self.prefetch > MAX_CLAIMED:
            raise UsageError(f"prefetch is {self.prefetch}: give at most {MAX_CLAIMED}")
        if self.ack not in (AUTO, MANUAL):
            raise UsageError(f"ack is {self.ack!r}: give {AUTO!r} or {MANUAL!r}")
        if not 0 < len(self.name) <= MAX_NAME:
            raise UsageError(f"{self.name!r} is no name: give 1 to {MAX_NAME} characters")
        if self.where is not None:
            raise UsageError(
                "a named subscription has no predicate, because it acknowledges whole "
                "publications: leave out 'where', and skip rows that do not match"
            )
        if isinstance(self.start, datetime):
            raise UsageError(
                "a named subscription begins at 'latest', 'earliest' or a position: find the "
                "position of that time with 'quorumcast replay'"
            )


def meanings(options: Callable[..., Any]) -> dict[str, str]:
    """What each field of one of these structs means."""
    return {
        name: next(one.description or "" for one in get_args(kind) if isinstance(one, Meta))
        for name, kind in get_type_hints(options, include_extras=True).items()
    }


def takes(
    options: Callable[P, OptionsT],
) -> Callable[[Callable[[SelfT, OptionsT], ResultT]], Callable[Concatenate[SelfT, P], ResultT]]:
    """Let a method that takes a struct be called with the fields of the struct as arguments."""

    def decorate(
        method: Callable[[SelfT, OptionsT], ResultT],
    ) -> Callable[Concatenate[SelfT, P], ResultT]:
        @functools.wraps(method)
        def call(self: SelfT, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
            return method(self, options(*args, **kwargs))

        own, *_ = inspect.signature(method).parameters.values()
        kinds = get_type_hints(options)
        taken = [
            parameter.replace(annotation=kinds[name])
            for name, parameter in inspect.signature(options).parameters.items()
        ]
        returned = inspect.signature(method).return_annotation
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [own, *taken], return_annotation=returned
        )
        lines = [f"{name}: {meaning}" for name, meaning in meanings(options).items()]
        texts = (inspect.getdoc(method), inspect.getdoc(options), "\n".join(lines))
        call.__doc__ = "\n\n".join(text or "" for text in texts)
        return call

    return decorate
