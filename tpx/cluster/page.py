"""The page of a cluster: its replicas and their load over ten minutes, on one screen.

`tpx cluster page` serves it on the machine of whoever looks. The page keeps the history itself, so that
a cluster that nobody looks at does nothing for it.
"""

import json
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tpx.errors import TpxError, UsageError
from tpx.protocol.json_values import JsonObject
from tpx.serving.frontends.page import build_page

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")
_JSON = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"


def open_page(port: int, read_status: Callable[[], JsonObject]) -> ThreadingHTTPServer:
    """Listen for browsers of this machine; `serve_forever` answers them.

    `read_status` returns the cluster's status and may raise TpxError. Raises UsageError if the port is taken.
    """
    try:
        return ThreadingHTTPServer((HOST, port), partial(_PageConnection, read_status))
    except OSError as exc:
        raise UsageError(f"--port {port}: {exc.strerror}") from exc


class _PageConnection(BaseHTTPRequestHandler):
    """Answers / with the page, and /status with what it shows."""

    def __init__(self, read_status: Callable[[], JsonObject], *about: object) -> None:
        self._read_status = read_status
        super().__init__(*about)  # type: ignore[arg-type]  # it handles the request here

    def do_GET(self) -> None:
        if self.headers.get("Host", "").partition(":")[0] not in _NAMES:  # another site (DNS rebinding)
            self._answer(403, _JSON, _encode_error("this page is for browsers of this machine"))
        elif self.path == "/":
            self._answer(200, *build_page("cluster", "charts", product="cluster", title="tpx cluster"))
        elif self.path == "/status":
            try:
                self._answer(200, _JSON, json.dumps(self._read_status()).encode())
            except TpxError as exc:
                self._answer(503, _JSON, _encode_error(exc.message))
        else:
            self._answer(404, _JSON, _encode_error("there is / and /status"))

    def _answer(self, status: int, headers: bytes, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.flush_headers()
        self.wfile.write(headers + b"\r\n" + body)

    def log_message(self, *_: object) -> None:
        """Log nothing: a browser asks every two seconds."""


def _encode_error(message: str) -> bytes:
    return json.dumps({"error": message}).encode()
