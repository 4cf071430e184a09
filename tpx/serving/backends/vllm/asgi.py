"""A request to vLLM's application for OpenAI's API, by ASGI, and its answers as a view takes them."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import cast

from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import OWN
from tpx.serving.backends.language.generation import Generation
from tpx.serving.backends.python.worker.errors import ErrorCode

_OPEN = b'"finish_reason":null'
"""In all chunks of a choice but its last. Within a text the quotes would be escaped."""
_PIECE = re.compile(rb"event: (response\.[a-z_.]+\.delta|content_block_delta)\n")
"""Begins an event with a piece of the output."""
_CODES = {400: ErrorCode.INVALID_ARG, 404: ErrorCode.INVALID_ARG, 501: ErrorCode.UNSUPPORTED}

Message = JsonObject
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]
"""An ASGI application."""


class AsgiCall:
    """A request to the application, and what it answers."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._own = generation.endpoint in OWN
        self._body, self._choices = cast("tuple[bytes, int]", generation.body)
        self._gone = asyncio.Event()
        self._status = 0
        self._events = False
        self._text = b""
        self._end: JsonObject = {}
        """The last chunk of a choice, until the numbers of tokens are known."""
        self.scope: Message = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": f"/v1/{generation.endpoint}",
            "raw_path": f"/v1/{generation.endpoint}".encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"engine"), (b"content-type", b"application/json")],
            "client": None,
            "server": None,
        }

    def look(self) -> None:
        """Leave if the client has left."""
        if self._generation.cancelled:
            self._generation.take(b"")
            self._gone.set()

    async def receive(self) -> Message:
        """Return the request, and then the end of the connection, once the request is cancelled."""
        if self._body:
            body, self._body = self._body, b""
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a part of the answer."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = dict(message.get("headers", ()))
            self._events = headers.get(b"content-type", b"").startswith(b"text/event-stream")
            return
        self._text += message.get("body", b"")
        if self._status != 200:
            if not message.get("more_body"):
                self._refuse(_parse_error(self._text))
        elif self._events:
            *events, self._text = self._text.split(b"\n\n")
            for event in events:
                self._take(event)
        elif not message.get("more_body"):
            self._pass_on(self._text, token=False)

    def _take(self, event: bytes) -> None:
        if self._gone.is_set():
            return
        if self._own:
            self._pass_on(event, token=_PIECE.match(event) is not None)
            return
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            return
        if _OPEN in data:
            self._pass_on(data)
            return
        chunk = json.loads(data)
        if "error" in chunk:
            self._refuse(chunk)
            return
        if not chunk["choices"]:  # after the last choice
            self._pass_on(_encode({**self._end, "timings": self._count(chunk["usage"])}))
            return
        if self._end:
            self._pass_on(_encode(self._end))
        self._end = chunk

    def _pass_on(self, data: bytes, *, token: bool = True) -> None:
        if self._generation.take(data, token=token):
            self._gone.set()

    def _count(self, usage: JsonObject) -> JsonObject:
        """Return the numbers of tokens as a view takes them: those of the prompt for each choice."""
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return {
            "prompt_n": usage["prompt_tokens"] * self._choices - cached,
            "cache_n": cached,
            "predicted_n": usage["completion_tokens"],
        }

    def _refuse(self, answer: JsonObject) -> None:
        error = answer.get("error", answer)
        message = str(error.get("message", f"vLLM answers {self._status}"))
        code = int(error.get("code") or self._status)
        self._generation.refuse(message, _CODES.get(code, ErrorCode.INTERNAL))


def _parse_error(body: bytes) -> JsonObject:
    """Return the error of a body, which has none or is a plain text where vLLM's application itself fails."""
    try:
        answer = json.loads(body)
    except ValueError:
        return {"message": body.decode(errors="replace")} if body else {}
    return answer if isinstance(answer, dict) else {}


def _encode(chunk: JsonObject) -> bytes:
    return json.dumps(chunk, separators=(",", ":")).encode()
