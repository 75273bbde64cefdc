"""Keeps calling one peer until it answers, and again when the link breaks.

Pauses between attempts double up to a limit and are drawn with jitter, so that the clients of a
broker that comes back do not all call in the same instant. A link that was open resets the pause.
`trouble` always says in one sentence why there is no link, for whoever has to tell the user.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from typing import Protocol

from quorumcast.core.ids import NodeId
from quorumcast.manifest.manifest import BrokerEntry
from quorumcast.runtime.limits import TransportLimits
from quorumcast.runtime.link import Link, Phase


class Caller(Protocol):
    """Who wants the link."""

    def calling(self, peer: NodeId) -> Link:
        """A fresh link to connect."""
        ...


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
        #: Why there is no link, in a sentence.
        self.trouble = "no answer yet"
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

    async def stopped(self) -> None:
        """Until nothing of the attempt is left."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        pause = self._limits.retry_first_s
        while True:
            if await self._attempt():
                pause = self._limits.retry_first_s
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.5))
            pause = min(2 * pause, self._limits.retry_longest_s)

    async def _attempt(self) -> bool:
        """Connect, greet, wait for the end; whether the link was ever open."""
        entry, limits = self._entry, self._limits
        loop = asyncio.get_running_loop()
        self._lost.clear()
        link = self._link = self._caller.calling(entry.id)
        try:
            async with asyncio.timeout(limits.connect_timeout_s):
                await loop.create_connection(
                    lambda: link,
                    entry.host,
                    entry.port,
                    ssl=self._tls,
                    server_hostname="quorumcast" if self._tls else None,
                )
        except TimeoutError:
            self.trouble = f"{entry.address} does not answer"
            return False
        except ssl.SSLError as error:
            detail = getattr(error, "verify_message", "") or error.reason or error
            self.trouble = (
                f"the TLS certificate at {entry.address} is not the manifest's ({detail})"
            )
            return False
        except OSError as error:
            self.trouble = f"{entry.address} {_why(error)}"
            return False
        deadline = loop.call_later(limits.greeting_timeout_s, link.expire)
        try:
            await self._lost.wait()
        finally:
            deadline.cancel()
            if link.phase is not Phase.OPEN:
                link.abort("stopped")
        self.trouble = link.farewell
        return link.was_open


def _why(error: OSError) -> str:
    match error:
        case ConnectionRefusedError():
            return "refuses connections (is the broker running?)"
        case socket.gaierror():
            return "cannot be found (does the host name exist?)"
        case _:
            return f"cannot be reached ({error.strerror or error})"
