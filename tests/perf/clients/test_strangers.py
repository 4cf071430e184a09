"""Servers that answer questions about themselves with what no client should swallow."""

import asyncio
import socket
import threading
from contextlib import suppress

import pytest

from tpx.errors import TpxError
from tpx.perf.clients import control
from tpx.perf.clients.control import HttpMethodCaller
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.model import ModelKey
from tpx.protocol.http1.client import HttpConnector

HEAD = b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n"


def asked(answer: bytes) -> str:
    """The error of a question to a server that answers so, and then waits for the client to leave."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def serve() -> None:
            peer, _ = listening.accept()
            with peer, suppress(OSError):
                peer.recv(1 << 16)
                peer.sendall(answer)
                peer.recv(1)

        async def ask() -> str:
            endpoint = Endpoint(host="127.0.0.1", port=port, model=ModelKey("m"))
            caller = HttpMethodCaller(HttpConnector("127.0.0.1", port), endpoint)
            with pytest.raises(TpxError) as caught:
                await caller.ask("ModelMetadata", timeout_s=10)
            await caller.close()
            await asyncio.sleep(0)
            return caught.value.message

        server = threading.Thread(target=serve)
        server.start()
        try:
            return asyncio.run(ask())
        finally:
            server.join(10)


@pytest.mark.parametrize("status", [200, 400])
def test_json_that_is_nested_without_end_is_an_error_of_the_server(status: int) -> None:
    body = b"[" * 5_000_000
    message = asked(HEAD % (status, len(body)) + body)
    assert len(message) < 1000
    assert ("nested" if status == 200 else "HTTP 400") in message


def test_an_endless_answer_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_ANSWER_BYTES", 1000)
    assert "larger than 1000 bytes" in asked(HEAD % (200, 1001))
    endless = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + bytes(300_000)
    assert "larger than 1000 bytes" in asked(endless)


def test_an_error_without_end_is_cut() -> None:
    body = b'{"error": "%b"}' % (b"x" * 1_000_000)
    assert asked(HEAD % (400, len(body)) + body) == "x" * 4000 + "..."
