"""Check whether a node answers at its address and holds the keys that the directory lists.

A probe closes after the node's answer and never authenticates itself, so it displaces no live
connection of the same identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import cast

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.crypto.directory import Address
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.session import NO_MESSAGES, Farewell, Welcome
from quorumcast.runtime.links import schemes
from quorumcast.runtime.links.dialer import why, wrong_certificate
from quorumcast.runtime.links.greeting import (
    MAX_GREETING_BYTES,
    Greeter,
    decode_greeting,
    encode_greeting,
    sentence_of,
)


async def probe(peer: NodeId, address: Address, keyring: Keyring | None, timeout_s: float) -> str:
    """What is wrong with a node, in a sentence; empty if it is the one that we called.

    Without a keyring only the connection is tried.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _probe(peer, address, keyring)
    except TimeoutError:
        return f"{address} does not answer"
    except ssl.SSLError as error:
        return wrong_certificate(address, error)
    except OSError as error:
        return f"{address} {why(error)}"
    except UsageError as error:
        return str(error)
    except asyncio.IncompleteReadError:
        return f"{address} hung up; is it a broker?"


async def _probe(peer: NodeId, address: Address, keyring: Keyring | None) -> str:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    me = NodeId("") if keyring is None else keyring.identity.name
    transport = await schemes.connect(lambda: protocol, address, me=me, peer=peer)
    writer = asyncio.StreamWriter(cast(asyncio.Transport, transport), protocol, reader, loop)
    try:
        if keyring is None:
            return ""
        return await _greet(peer, address, Greeter(keyring, NO_MESSAGES), reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _greet(
    peer: NodeId,
    address: Address,
    greeter: Greeter,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> str:
    hello = greeter.hello(peer)
    frame = encode_greeting(hello)
    writer.write(len(frame).to_bytes(4, "big") + frame)
    length = int.from_bytes(await reader.readexactly(4), "big")
    answer = None
    if length <= MAX_GREETING_BYTES:
        answer = decode_greeting(await reader.readexactly(length))
    match answer:
        case Welcome() if greeter.conclude(hello, answer) is not None:
            return ""
        case Welcome():
            return f"the node that answers at {address} does not have the keys of {peer}"
        case Farewell():
            return sentence_of(answer)
        case _:
            return f"the program at {address} is not a broker"
