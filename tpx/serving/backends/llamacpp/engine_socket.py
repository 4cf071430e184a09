"""llama.cpp's own endpoints, for which its library has no functions: HTTP over its Unix socket."""

import json
import os
import socket
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection

import httptools

from tpx.protocol.json_values import JsonObject
from tpx.serving.backends.language.generation import Generation
from tpx.serving.backends.language.http_answer import HttpAnswer

_LOOK_EVERY_S = 0.1
"""How soon a client that has left is noticed while the engine sends nothing."""
_READ_BYTES = 64 << 10
_MORE_CONTEXT = " (the model's parameter n_ctx, of which each of n_parallel sequences has an equal part)"


class EngineSocket:
    """Asks llama.cpp over a Unix socket whose file is removed: a descriptor of this process leads there.

    Other processes of the same user could use that by /proc, but have no key.
    """

    def __init__(self, descriptor: int, key: str) -> None:
        """`descriptor` is of the socket's file, opened with O_PATH; `key` is llama.cpp's."""
        self._path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._key = key

    def supports_tools(self) -> bool:
        """Return whether the chat template of the model has tools."""
        connection = HTTPConnection("engine")
        with closing(self._connect()) as connection.sock:
            connection.request("GET", "/props", headers={"Authorization": f"Bearer {self._key}"})
            properties = json.loads(connection.getresponse().read())
        return bool(properties.get("chat_template_caps", {}).get("supports_tools"))

    def call(self, generation: Generation, body: bytes) -> None:
        """Compute a request until its end, or until its client has left. Raises OSError if the engine ends
        the connection.
        """
        head = (
            f"POST /v1/{generation.endpoint} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n"
            f"Authorization: Bearer {self._key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        reading = _ResponseReading(generation)
        with closing(self._connect()) as sock:
            sock.sendall(head.encode() + body)
            sock.settimeout(_LOOK_EVERY_S)
            while not reading.over:
                try:
                    data = sock.recv(_READ_BYTES)
                except TimeoutError:
                    reading.answer.look()
                    continue
                if not data:
                    raise ConnectionError("llama.cpp has ended the connection")
                reading.parser.feed_data(data)

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self._path)
        return sock


class LlamaCppAnswer(HttpAnswer):
    """An answer of llama.cpp, whose errors say which parameter of the model to change."""

    def __init__(self, generation: Generation, leave: Callable[[], None]) -> None:
        super().__init__(generation, "llama.cpp", leave)

    def refuse(self, answer: JsonObject) -> None:
        error = answer.get("error", {})
        if error.get("type") == "exceed_context_size_error":
            error["message"] += _MORE_CONTEXT
        super().refuse(answer)


class _ResponseReading:
    """Receiver of httptools' callbacks for one response."""

    def __init__(self, generation: Generation) -> None:
        self.answer = LlamaCppAnswer(generation, self._stop)
        self.parser = httptools.HttpResponseParser(self)
        self.over = False
        self._content_type = b""

    def _stop(self) -> None:
        self.over = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._content_type = value

    def on_headers_complete(self) -> None:
        self.answer.begin(self.parser.get_status_code(), self._content_type)

    def on_body(self, body: bytes) -> None:
        self.answer.take(body, more=True)

    def on_message_complete(self) -> None:
        self.answer.take(b"", more=False)
        self.over = True
