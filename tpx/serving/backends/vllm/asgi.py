"""A request to vLLM's application for OpenAI's API, by ASGI, and its answers as a view takes them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import cast

from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import OWN
from tpx.serving.backends.language.generation import Generation
from tpx.serving.backends.language.http_answer import HttpAnswer

_OPEN = b'"finish_reason":null'
"""In all chunks of a choice but its last. Within a text the quotes would be escaped."""

Message = JsonObject
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]
"""An ASGI application."""


class AsgiCall:
    """A request to the application, and what it answers."""

    def __init__(self, generation: Generation) -> None:
        self._body, choices = cast("tuple[bytes, int]", generation.body)
        self._gone = asyncio.Event()
        self._answer = (
            HttpAnswer(generation, "vLLM", self._gone.set)
            if generation.endpoint in OWN
            else _Chunks(generation, self._gone.set, choices)
        )
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
        self._answer.look()

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
            headers = dict(message.get("headers", ()))
            self._answer.begin(message["status"], headers.get(b"content-type", b""))
        else:
            self._answer.take(message.get("body", b""), more=bool(message.get("more_body")))


class _Chunks(HttpAnswer):
    """The chunks of a chat or completion, whose last one gets the numbers of tokens."""

    def __init__(self, generation: Generation, leave: Callable[[], None], choices: int) -> None:
        super().__init__(generation, "vLLM", leave)
        self._choices = choices
        self._end: JsonObject = {}
        """The last chunk of a choice, until the numbers of tokens are known."""

    def take_event(self, event: bytes) -> None:
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            return
        if _OPEN in data:
            self.pass_on(data)
            return
        chunk = json.loads(data)
        if "error" in chunk:
            self.refuse(chunk)
            return
        if not chunk["choices"]:  # after the last choice
            self.pass_on(_encode({**self._end, "timings": self._count(chunk["usage"])}))
            return
        if self._end:
            self.pass_on(_encode(self._end))
        self._end = chunk

    def _count(self, usage: JsonObject) -> JsonObject:
        """Return the numbers of tokens as a view takes them: those of the prompt for each choice."""
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return {
            "prompt_n": usage["prompt_tokens"] * self._choices - cached,
            "cache_n": cached,
            "predicted_n": usage["completion_tokens"],
        }


def _encode(chunk: JsonObject) -> bytes:
    return json.dumps(chunk, separators=(",", ":")).encode()
