"""Keeps calling one peer until it answers, and again when the link breaks.

Pauses between attempts double up to a limit and are drawn with jitter, so that the clients of a
broker that comes back do not all call in the same instant. A link that was open resets the pause,
unless another process with our identity displaced it: two such processes would displace each other
for ever, so each comes back ever more rarely and says why. `trouble` always says in one sentence
why there is no link, for whoever has to tell the user.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
from typing import Protocol

from quorumcast.core.ids import NodeId
from quorumcast.manifest.manifest import BrokerEntry
from quorumcast.runtime.links.contract import Trouble
from quorumcast.runtime.links.limits import TransportLimits
from quorumcast.runtime.links.link import Link, Phase
from quorumcast.runtime.logs import note


class Caller(Protocol):
    """Who wants the link."""

    def calling(self, peer: NodeId) -> Link:
        """A fresh link to connect."""
        ...


class Pauses:
    """How long to wait before the next attempt, before jitter."""

    def __init__(self, limits: TransportLimits) -> None:
        self._limits = limits
        self._last = 0.0

    def after(self, *, was_open: bool, displaced: bool) -> float:
        """The pause after an attempt that ended like this."""
        limits = self._limits
        first, longest = limits.retry_first_s, limits.retry_longest_s
        if displaced:
            first, longest = limits.displaced_first_s, limits.displaced_longest_s
        elif was_open:
            self._last = 0.0
        self._last = min(max(first, 2 * self._last), longest)
        return self._last


class Dialer:
    """One peer that we call."""

    def __init__(
        self,
        caller: Caller,
        entry: BrokerEntry,
        tls: ssl.SSLContext | None,
        limits: TransportLimits,
        rng: random.Random,
    ) -> None:
        self._caller = caller
        self._entry = entry
        self._tls = tls
        self._limits = limits
        self._rng = rng
        #: Why there is no link.
        self.trouble = Trouble()
        self._link: Link | None = None
        self._lost = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def link_closed(self, link: Link) -> None:
        """Called by the transport when the socket is gone."""
        if link is self._link:
            self._lost.set()

    def stop(self) -> None:
        """Call no more; an open link is the transport's to close."""
        self._task.cancel()
        if self._link is not None and self._link.phase is not Phase.OPEN:
            self._link.abort("stopped")

    async def stopped(self) -> None:
        """Until nothing of the attempt is left."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        pauses = Pauses(self._limits)
        while True:
            link = self._link = self._caller.calling(self._entry.id)
            self.trouble = await self._attempt(link)
            pause = pauses.after(was_open=link.was_open, displaced=link.displaced)
            if link.displaced:
                note(self.trouble.sentence, level=logging.WARNING, calls_again_in_s=pause)
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.5))

    async def _attempt(self, link: Link) -> Trouble:
        """Connect, greet, wait for the end; says why it ended."""
        entry, limits = self._entry, self._limits
        loop = asyncio.get_running_loop()
        self._lost.clear()
        try:
            async with asyncio.timeout(limits.connect_timeout_s):
                await connect(link, entry, self._tls)
        except TimeoutError:
            return Trouble(f"{entry.address} does not answer")
        except ssl.SSLError as error:
            detail = getattr(error, "verify_message", "") or error.reason or error
            return Trouble(
                f"the TLS certificate at {entry.address} is not the manifest's ({detail})"
            )
        except OSError as error:
            return Trouble(f"{entry.address} {why(error)}")
        deadline = loop.call_later(limits.greeting_timeout_s, link.expire)
        try:
            await self._lost.wait()
        finally:
            deadline.cancel()
            if link.phase is not Phase.OPEN:
                link.abort("stopped")
        return Trouble(link.farewell, link.refused)


async def connect(link: Link, entry: BrokerEntry, tls: ssl.SSLContext | None) -> None:
    """Give a link its socket; whoever is cancelled meanwhile leaves no link behind."""
    loop = asyncio.get_running_loop()
    name = "quorumcast" if tls else None
    try:
        await loop.create_connection(
            lambda: link, entry.host, entry.port, ssl=tls, server_hostname=name
        )
    except BaseException:
        # The socket may have been made, and even greeted: uvloop closes it without a word to us.
        link.connection_lost(None)
        raise


def why(error: OSError) -> str:
    """Why an address cannot be reached, to follow on the address."""
    match error:
        case ConnectionRefusedError():
            return "refuses connections (is the broker running?)"
        case socket.gaierror():
            return "cannot be found (does the host name exist?)"
        case _:
            return f"cannot be reached ({error.strerror or error})"
