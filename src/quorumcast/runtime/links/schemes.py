"""How bytes travel between two nodes: TCP, or a transport of another package.

The host of an address may begin with the name of a transport: `unix+/run/cell` is the host
`/run/cell` of the transport `unix`; a host without a name is TCP. Addresses are in the signed
manifest, so both ends use the same transport. A transport of another package is an entry point of
the group `quorumcast.transports`. It carries bytes between two sockets and nothing else: framing,
authentication, limits and fairness stay in `Link`, so it need not be trusted with more than delay
and loss.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol

from quorumcast.core.ids import NodeId
from quorumcast.core.plugins import Plugin, Registry
from quorumcast.crypto.directory import Address
from quorumcast.runtime.links.tls import client_context

#: The version of `TransportScheme` and of what it refers to.
CONTRACT = 1
#: Makes the protocol object of one connection, a `Link`.
MakeProtocol = Callable[[], asyncio.BaseProtocol]


class ListeningSocket(Protocol):
    """A socket that accepts connections."""

    def close(self) -> None:
        """Accept no more of them; those that are open stay."""


class Connect(Protocol):
    """Makes one connection; raises `OSError` if nothing answers."""

    async def __call__(
        self,
        make: MakeProtocol,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        *,
        me: NodeId,
        peer: NodeId,
    ) -> asyncio.BaseTransport:
        """`host` is without the name of the transport; `me` calls `peer`."""


class Listen(Protocol):
    """Accepts connections; raises `OSError` if that is impossible."""

    async def __call__(
        self, make: MakeProtocol, host: str, port: int, tls: ssl.SSLContext | None
    ) -> ListeningSocket:
        """`make` is called for each of them."""


class TransportScheme(Plugin, frozen=True, kw_only=True):
    """One transport. Connections have the methods of `asyncio.Transport` and keep their order."""

    connect: Connect
    listen: Listen


#: Transports by name.
SCHEMES = Registry(
    "quorumcast.transports",
    "transport",
    TransportScheme,
    CONTRACT,
    {"tcp": "quorumcast.runtime.links.schemes:TCP", "wan": "quorumcast.runtime.links.wan:WAN"},
)


def split_host(host: str) -> tuple[str, str]:
    """The name of the transport and the rest of a host."""
    name, plus, rest = host.partition("+")
    return (name, rest) if plus else ("tcp", host)


async def connect(
    make: MakeProtocol, address: Address, *, me: NodeId, peer: NodeId
) -> asyncio.BaseTransport:
    """Connect to an address, with TLS if it lists a certificate."""
    name, host = split_host(address.host)
    scheme = SCHEMES.load(name)
    tls = client_context(address.certificate) if address.certificate else None
    return await scheme.connect(make, host, address.port, tls, me=me, peer=peer)


async def listen(
    make: MakeProtocol, host: str, port: int, tls: ssl.SSLContext | None
) -> ListeningSocket:
    """Accept connections at a host, which may name a transport."""
    name, rest = split_host(host)
    return await SCHEMES.load(name).listen(make, rest, port, tls)


async def _connect_tcp(
    make: MakeProtocol,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    *,
    me: NodeId,
    peer: NodeId,
) -> asyncio.BaseTransport:
    name = "quorumcast" if tls else None
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(make, host, port, ssl=tls, server_hostname=name)
    return transport


async def _listen_tcp(
    make: MakeProtocol, host: str, port: int, tls: ssl.SSLContext | None
) -> ListeningSocket:
    loop = asyncio.get_running_loop()
    return await loop.create_server(make, host, port, ssl=tls, backlog=512)


TCP = TransportScheme(contract=CONTRACT, connect=_connect_tcp, listen=_listen_tcp)
