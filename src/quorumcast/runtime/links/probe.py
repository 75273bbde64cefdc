"""Whether a broker answers, and proves to be the one that the manifest names.

A probe greets and goes: it never proves itself, so the broker believes nothing of it and no live
connection of the same identity gives way.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.session import NO_MESSAGES, Farewell, Welcome
from quorumcast.manifest.manifest import BrokerEntry
from quorumcast.runtime.links.dialer import why
from quorumcast.runtime.links.greeting import (
    MAX_GREETING_BYTES,
    Greeter,
    decode_greeting,
    encode_greeting,
    sentence_of,
)
from quorumcast.runtime.links.tls import client_context


async def probe(entry: BrokerEntry, keyring: Keyring | None, timeout_s: float) -> str:
    """What is wrong with a broker, in a sentence; nothing if it is the one that was called.

    Without a keyring only its address is tried.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _probe(entry, keyring)
    except TimeoutError:
        return f"{entry.address} does not answer"
    except ssl.SSLError as error:
        detail = getattr(error, "verify_message", "") or error.reason or error
        return f"the TLS certificate at {entry.address} is not the manifest's ({detail})"
    except OSError as error:
        return f"{entry.address} {why(error)}"
    except asyncio.IncompleteReadError:
        return f"{entry.address} hung up; is it a broker?"


async def _probe(entry: BrokerEntry, keyring: Keyring | None) -> str:
    tls = client_context(entry.certificate) if entry.certificate else None
    reader, writer = await asyncio.open_connection(
        entry.host, entry.port, ssl=tls, server_hostname="quorumcast" if tls else None
    )
    try:
        if keyring is None:
            return ""
        return await _greet(entry, Greeter(keyring, NO_MESSAGES), reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _greet(
    entry: BrokerEntry,
    greeter: Greeter,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> str:
    hello = greeter.hello(entry.id)
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
            return f"who answers at {entry.address} has not the keys of {entry.id}"
        case Farewell():
            return sentence_of(answer)
        case _:
            return f"what answers at {entry.address} is no broker"
