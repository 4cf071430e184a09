"""A small service with OpenAI's API whose tokens come at known times."""

import asyncio
import json
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tests.perf.conversing import Request, conversing


@dataclass
class Script:
    """What the service does with every request."""

    tokens: int = 4
    first_s: float = 0.02
    gap_s: float = 0.005
    status: int = 200
    usage: bool = True
    reasoning: int = 0
    """Tokens, of the first, that are reasoning."""
    cached: int = 0
    """Tokens of the prompt, of 12, that were cached."""
    per_word: float = 0.0
    """Tokens that each word of a prompt takes, besides 12."""
    lingers: bool = True
    """False if the connection closes behind a stream although the answer announced that it stays."""
    breaks_after: int = -1
    """Tokens after which the stream tells of an error; -1: never."""
    chunked: bool = True
    """Whether the body is chunked, or ends with the connection."""
    splits: bool = False
    """Whether events come in pieces that end anywhere."""
    replies: bool = False
    """Whether an answer names the message that it answers."""
    refuses: str = ""
    """A message that is answered with status 500."""
    silent: bool = False
    """Whether a stream of a chat lacks the event that names the role."""
    most_at_once: int = 0
    """Requests that were being answered at the same time."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


class OpenAiServer:
    """Answers as its script says."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._busy = 0

    async def answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        self._busy += 1
        self._script.most_at_once = max(self._script.most_at_once, self._busy)
        try:
            return await self._answer(request, writer)
        finally:
            self._busy -= 1

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        script = self._script
        body = json.loads(request.body)
        script.bodies.append(body)
        script.headers.append(request.headers.get("authorization", ""))
        script.paths.append(request.path)
        last = body["messages"][-1]["content"] if body.get("messages") else ""
        prompt = 12 + round(script.per_word * len((last or str(body.get("prompt"))).split()))
        if script.refuses and last == script.refuses:
            self._whole(writer, 500, {"error": {"message": f"cannot say {last}"}})
        elif script.status != 200:
            self._whole(writer, script.status, {"error": {"message": "no such model", "type": "x"}})
        elif body.get("stream"):
            return await self._stream(
                writer, f"to {last}: " if script.replies else "", prompt, chat="messages" in body
            )
        else:
            await asyncio.sleep(script.first_s)
            counted = {"completion_tokens": script.tokens, "prompt_tokens": prompt}
            usage = {"usage": counted} if script.usage else {}
            text = f"to {last}: all" if script.replies else "all"
            made = {"message": {"content": text}} if "messages" in body else {"text": text}
            kind = "chat.completion" if "messages" in body else "text_completion"
            self._whole(writer, 200, {"object": kind, "choices": [made], **usage})
        return True

    def _whole(self, writer: asyncio.StreamWriter, status: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (status, len(data)) + data)

    async def _stream(self, writer: asyncio.StreamWriter, before: str, prompt: int, *, chat: bool) -> bool:
        script = self._script
        framing = b"Transfer-Encoding: chunked" if script.chunked else b"Connection: close"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + framing + b"\r\n\r\n")
        kind = {"object": "chat.completion.chunk" if chat else "text_completion"}
        if chat and not script.silent:
            await self._event(writer, kind | {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        await asyncio.sleep(script.first_s)
        for number in range(script.tokens):
            if number:
                await asyncio.sleep(script.gap_s)
            if number == script.breaks_after:
                await self._event(writer, {"error": {"message": "out of memory"}})
                break
            text = f"t{number}" if number else f"{before}t0"
            member = "reasoning_content" if number < script.reasoning else "content"
            piece = {"delta": {member: text}} if chat else {"text": text}
            await self._event(writer, kind | {"choices": [piece]})
        if script.usage:
            usage = {
                "completion_tokens": 2 * script.tokens,
                "completion_tokens_details": {"reasoning_tokens": 2 * script.reasoning},
                "prompt_tokens": prompt,
                "prompt_tokens_details": {"cached_tokens": script.cached},
            }
            await self._event(writer, kind | {"choices": [], "usage": usage})
        await self._write(writer, b"data: [DONE]\n\n")
        if script.chunked:
            writer.write(b"0\r\n\r\n")
        return script.chunked and script.lingers

    async def _event(self, writer: asyncio.StreamWriter, event: Any) -> None:
        await self._write(writer, b"data: " + json.dumps(event).encode() + b"\n\n")

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        halves = [data[: len(data) // 2], data[len(data) // 2 :]] if self._script.splits else [data]
        for half in halves:
            writer.write(b"%x\r\n%b\r\n" % (len(half), half) if self._script.chunked else half)
            await writer.drain()
            await asyncio.sleep(0)


def openai_server(script: Script, port: int = 0) -> AbstractContextManager[str]:
    """A running service; yields host:port."""
    return conversing(OpenAiServer(script).answer, port)
