"""Outgoing connections: a `Dialer` keeps a link to one peer, a `Call` tries once.

Pauses between attempts double up to a limit, with jitter, so that the clients of a broker that
restarts do not all call at once. A link that was open resets the pause, unless another process with
our identity displaced it: two such processes would displace each other for ever, so each waits
longer every time and logs why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
from collections.abc import Callable

from quorumcast.core.errors import UsageError
from quorumcast.crypto.directory import Address
from quorumcast.runtime.links import schemes
from quorumcast.runtime.links.contract import Trouble
from quorumcast.runtime.links.limits import TransportLimits
from quorumcast.runtime.links.link import Link, Phase
from quorumcast.runtime.logs import note


class Pauses:
    """The pauses between attempts, without jitter."""

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
    """Calls one peer until it answers, and again whenever the link ends."""

    def __init__(
        self,
        make_link: Callable[[], Link],
        address: Address,
        limits: TransportLimits,
        rng: random.Random,
    ) -> None:
        self._make_link = make_link
        self._address = address
        self._limits = limits
        self._rng = rng
        #: Why there is no link.
        self.trouble = Trouble()
        self._link: Link | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Stop calling; the transport closes a link that is open."""
        self._task.cancel()
        if self._link is not None and self._link.phase is not Phase.OPEN:
            self._link.abort("stopped")

    async def stopped(self) -> None:
        """Wait until the last attempt has ended."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        pauses = Pauses(self._limits)
        while True:
            link = self._link = self._make_link()
            self.trouble = await attempt(link, self._address, self._limits)
            pause = pauses.after(was_open=link.was_open, displaced=link.displaced)
            if link.displaced:
                note(self.trouble.sentence, level=logging.WARNING, calls_again_in_s=pause)
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.5))


class Call:
    """One attempt to reach a peer, and the link that results."""

    def __init__(
        self,
        link: Link,
        address: Address,
        limits: TransportLimits,
        failed: Callable[[Call, Trouble], None],
    ) -> None:
        self.link = link

        async def run() -> None:
            trouble = await attempt(link, address, limits)
            if not link.was_open:
                failed(self, trouble)

        self._task = asyncio.get_running_loop().create_task(run())

    def stop(self) -> None:
        """Cancel the call; the transport closes a link that is open."""
        if self.link.phase is not Phase.OPEN:
            self._task.cancel()
            self.link.abort("stopped")

    async def stopped(self) -> None:
        """Wait until the attempt has ended."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


async def attempt(link: Link, address: Address, limits: TransportLimits) -> Trouble:
    """Connect, greet, wait for the end of the link; the reason why it ended."""
    try:
        async with asyncio.timeout(limits.connect_timeout_s):
            await connect(link, address)
    except TimeoutError:
        return Trouble(f"{address} does not answer")
    except ssl.SSLError as error:
        return Trouble(wrong_certificate(address, error))
    except OSError as error:
        return Trouble(f"{address} {why(error)}")
    except UsageError as error:
        return Trouble(f"{address} cannot be called: {error}")
    except (ValueError, TypeError, OverflowError):
        return Trouble(f"{address} is not an address that can be called")
    deadline = asyncio.get_running_loop().call_later(limits.greeting_timeout_s, link.expire)
    try:
        await link.gone.wait()
    finally:
        deadline.cancel()
        if link.phase is not Phase.OPEN:
            link.abort("stopped")
    return Trouble(link.farewell, link.refused)


async def connect(link: Link, address: Address) -> None:
    """Give a link its socket; a cancelled attempt leaves no link behind."""
    try:
        await schemes.connect(lambda: link, address, me=link.me, peer=link.peer)
    except BaseException:
        # The socket may exist, and even have greeted: uvloop then closes it without telling us.
        link.connection_lost(None)
        raise


def wrong_certificate(address: Address, error: ssl.SSLError) -> str:
    """A sentence about a TLS error."""
    detail = getattr(error, "verify_message", "") or error.reason or error
    return f"the TLS certificate at {address} is not the one listed for it ({detail})"


def why(error: OSError) -> str:
    """Why an address cannot be reached: the rest of a sentence that begins with the address."""
    match error:
        case ConnectionRefusedError():
            return "refuses connections"
        case socket.gaierror():
            return "cannot be found (does the host name exist?)"
        case _:
            return f"cannot be reached ({error.strerror or error})"
