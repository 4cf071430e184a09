"""Plain sockets to a server under attack: send anything, read what comes back."""

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.serving.live import post_request as post_request

PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP answer, and what followed it before the server closed; None if it did not."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    rest: bytes | None

    @property
    def error(self) -> str:
        """The text of the error in a JSON body, or an empty string."""
        try:
            return str(json.loads(self.body)["error"])
        except (ValueError, TypeError, KeyError):
            return ""


def connect(port: int) -> socket.socket:
    """A fresh connection."""
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def send_all(sock: socket.socket, data: bytes) -> None:
    """Send as much as the server takes: it may have closed before it has read everything."""
    with suppress(ConnectionError):
        sock.sendall(data)


def read_answer(sock: socket.socket, method: str = "GET", *, until_closed: bool = False) -> Answer:
    """Read one answer. Raises http.client.BadStatusLine where there is none."""
    response = http.client.HTTPResponse(sock, method=method)
    response.begin()
    body = response.read()
    rest = read_rest(sock) if until_closed else None
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(status=response.status, headers=headers, body=body, rest=rest)


def read_rest(sock: socket.socket) -> bytes | None:
    """What comes until the server closes; None if it does not close in time."""
    out = b""
    try:
        while True:
            data = sock.recv(1 << 16)
            if not data:
                return out
            out += data
    except TimeoutError:
        return None
    except ConnectionError:
        return out


def ask(port: int, data: bytes, *, end: bool = False, until_closed: bool = False) -> Answer:
    """Send these bytes on a fresh connection and read the answer to them."""
    with connect(port) as sock:
        send_all(sock, data)
        if end:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        method = data[: data.find(b" ")].decode("latin-1") if data[:5] == b"HEAD " else "GET"
        return read_answer(sock, method, until_closed=until_closed)


def get(port: int, path: str) -> Answer:
    """GET on a fresh connection."""
    return ask(port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


def post(port: int, path: str, value: Any, headers: str = "") -> Answer:
    """POST of JSON on a fresh connection; `headers` are complete lines."""
    return ask(port, post_request(path, value, headers))
