"""An HTTP server in threads of this process that answers each request by a function."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as it came."""

    path: str
    headers: Message
    body: bytes


Answer = Callable[[Request], tuple[int, bytes]]
"""The status and the body."""


@contextmanager
def answering(answer: Answer, port: int = 0) -> Iterator[str]:
    """A running server, on a free port unless one is given; yields host:port."""

    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            status, content = answer(Request(path=self.path, headers=self.headers, body=body))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's name)
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", port), Answering) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def no_http() -> Iterator[str]:
    """A server that says what no HTTP client understands, as a port of gRPC does; yields host:port."""

    def speak(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00 settings\r\n")
                connection.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=speak, args=(listener,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
