"""The status page's server: short answers to well-formed requests, refusals to everything else."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from tests.runtime.world import run

from quorumcast.core.errors import UsageError
from quorumcast.runtime.broker.http import (
    MAX_CONNECTIONS,
    HttpRequest,
    HttpServer,
    Response,
    json_response,
)

POST = (
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
)


def echo(request: HttpRequest) -> Response:
    return json_response({"said": request.json(), "query": request.query})


async def ask(port: int, request: bytes) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def serve(act: Any) -> None:
    async def main() -> None:
        server = HttpServer({("GET", "/echo"): echo, ("POST", "/echo"): echo})
        await server.listen("127.0.0.1", 0)
        try:
            await act(server)
        finally:
            await server.close()

    run(main())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"localhost", 200),
        (b"LOCALHOST:8100", 200),
        (b"127.0.0.1:8100", 200),
        (b"[::1]:8100", 200),
        (b"evil.example", 421),
        (b"127.0.0.1.evil.example:8100", 421),
        (b"10.0.0.1", 421),
        (b"", 421),
        (b"[", 400),
    ],
)
def test_request_that_a_rebound_name_led_here_is_refused(host: bytes, status: int) -> None:
    async def act(server: HttpServer) -> None:
        request = b"GET /echo HTTP/1.1\r\nHost: %s\r\n\r\n" % host
        assert (await ask(server.port, request))[0] == status

    serve(act)


def test_request_for_the_name_that_the_page_listens_on_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        server = HttpServer({("GET", "/echo"): echo})
        await server.listen("broker-1.internal", 0)
        try:
            request = b"GET /echo HTTP/1.1\r\nHost: broker-1.internal\r\n\r\n"
            assert (await ask(server.port, request))[0] == 200
        finally:
            await server.close()

    start = asyncio.start_server

    async def here(act: Any, host: str, port: int, **options: Any) -> asyncio.Server:
        return await start(act, "127.0.0.1", port, **options)

    monkeypatch.setattr(asyncio, "start_server", here)
    run(main())


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /echo?a=1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (POST % (8, b'{"a": 1}'), 200),
        (POST % (4, b"junk"), 400),
        (POST % (10**9, b""), 400),
        (POST % (-1, b""), 400),
        (b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 400),
        (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"junk\r\n\r\n", 400),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ],
)
def test_request_is_answered_or_refused(request_: bytes, status: int) -> None:
    async def act(server: HttpServer) -> None:
        assert (await ask(server.port, request_))[0] == status

    serve(act)


def test_connections_beyond_the_limit_are_hung_up_on() -> None:
    async def act(server: HttpServer) -> None:
        idle = [
            await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MAX_CONNECTIONS)
        ]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        for _, other in idle:
            other.close()

    serve(act)


def test_listen_port_in_use_is_one_sentence() -> None:
    async def act(server: HttpServer) -> None:
        with pytest.raises(UsageError, match="the status page cannot listen on"):
            await HttpServer({}).listen("127.0.0.1", server.port)

    serve(act)


def test_http_deeply_nested_body_is_refused_in_a_sentence() -> None:
    async def act(server: HttpServer) -> None:
        body = b'{"a":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
        status, answer = await ask(server.port, POST % (len(body), body))
        assert status == 400
        assert "not nested too deeply" in answer["error"]

    serve(act)
