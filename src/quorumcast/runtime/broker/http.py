"""A small HTTP/1.1 server for metrics, status and control, bound to loopback by default.

Requests are limited in size, time and number, and each connection serves one. A request's `Host`
must be loopback or the address that it came to: a web page whose host name was made to resolve to
this machine (DNS rebinding) would otherwise reach it through a browser.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

import msgspec

from quorumcast.core.errors import UsageError

MAX_HEAD_BYTES = 8 * 1024
MAX_BODY_BYTES = 64 * 1024
MAX_CONNECTIONS = 64
TIMEOUT_S = 5.0


class HttpRequest(msgspec.Struct, frozen=True):
    """A request."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: bytes
    #: The `Host` header without the port.
    host: str = ""

    def json(self) -> dict[str, object]:
        """The body as a JSON object."""
        try:
            return msgspec.json.decode(self.body or b"{}", type=dict[str, object])
        except (msgspec.MsgspecError, RecursionError):
            raise UsageError("the body must be a JSON object, not nested too deeply") from None


class Response(msgspec.Struct, frozen=True):
    """An answer."""

    status: HTTPStatus
    body: bytes
    content_type: str = "application/json"


def json_response(value: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """A JSON answer."""
    return Response(status, json.dumps(value, default=str).encode() + b"\n")


def error_response(sentence: str, status: HTTPStatus) -> Response:
    """A refusal, in a sentence."""
    return json_response({"error": sentence}, status)


Handler = Callable[[HttpRequest], Response]


class HttpServer:
    """Routes (method, path) to handlers."""

    def __init__(self, routes: dict[tuple[str, str], Handler]) -> None:
        self._routes = routes
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        #: The name or address that we listen on.
        self._host = ""
        #: The port, once it listens.
        self.port = 0

    async def listen(self, host: str, port: int) -> None:
        """Listen; port 0 takes any free one."""
        try:
            self._server = await asyncio.start_server(
                self._connected, host, port, limit=MAX_HEAD_BYTES
            )
        except OSError as error:
            raise UsageError(
                f"the status page cannot listen on {host}:{port} ({error.strerror or error}); "
                "choose another port or address for it"
            ) from None
        self._host = host
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and drop open connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        if task is not None:
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                here = str(writer.get_extra_info("sockname")[0])
                response = await self._respond(reader, here)
                writer.write(_head(response) + response.body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # only `close` cancels this task, and nobody waits for its result
        finally:
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader, here: str) -> Response:
        try:
            request = await _read_request(reader)
        except (ValueError, asyncio.LimitOverrunError):
            return error_response("this is not an HTTP request", HTTPStatus.BAD_REQUEST)
        if not _is_loopback(request.host) and request.host not in (self._host, here):
            return error_response(
                f"this is not {request.host or 'a host without a name'}: ask for {here}",
                HTTPStatus.MISDIRECTED_REQUEST,
            )
        handler = self._routes.get((request.method, request.path))
        if handler is None:
            known = ", ".join(f"{method} {path}" for method, path in self._routes)
            return error_response(f"there is only: {known}", HTTPStatus.NOT_FOUND)
        try:
            return handler(request)
        except UsageError as error:
            return error_response(str(error), HTTPStatus.BAD_REQUEST)


async def _read_request(reader: asyncio.StreamReader) -> HttpRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ")
    headers = {
        name.strip().lower(): value.strip()
        for name, separator, value in (line.partition(":") for line in lines)
        if separator
    }
    length = int(headers.get("content-length", "0"))
    if not 0 <= length <= MAX_BODY_BYTES:
        raise ValueError(length)
    # A web page in a browser can send no such request without asking first (CORS).
    if method != "GET" and headers.get("content-type", "") != "application/json":
        raise ValueError(method)
    url = urlsplit(target)
    body = await reader.readexactly(length)
    host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    return HttpRequest(method, url.path, parse_qs(url.query), body, host)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _head(response: Response) -> bytes:
    return (
        f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode()
