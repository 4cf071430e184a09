"""A service with OpenAI's API that costs next to nothing: every request gets so many tokens at fixed times.

python token_server.py PORT TOKENS GAP_MS
"""

import asyncio
import json
import re
import sys
from typing import cast

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

MODELS = b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"data":[]}'


def event(value: object) -> bytes:
    """One event in a chunk of its own."""
    data = b"data: " + (value.encode() if isinstance(value, str) else json.dumps(value).encode()) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk(**members: object) -> dict[str, object]:
    """The members that vLLM's chunks have."""
    made = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1764000000, "model": "null"}
    return made | members


class Tokens(asyncio.Protocol):
    """One connection, with one request in flight."""

    def __init__(self, tokens: int, gap_s: float) -> None:
        self._tokens = tokens
        self._gap_s = gap_s
        self._left = 0
        self._body = b""
        delta = {"delta": {"content": " token"}, "index": 0, "finish_reason": None}
        self._token = event(chunk(choices=[delta]))
        usage = {"prompt_tokens": 32, "completion_tokens": tokens, "total_tokens": 32 + tokens}
        self._end = event(chunk(choices=[], usage=usage)) + event("[DONE]") + b"0\r\n\r\n"
        self._role = event(chunk(choices=[{"delta": {"role": "assistant", "content": ""}, "index": 0}]))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._body += data
        head, end, body = self._body.partition(b"\r\n\r\n")
        size = re.search(rb"(?i)content-length: *(\d+)", head)
        if not end or (size and len(body) < int(size[1])):
            return
        self._body = b""
        if head.startswith(b"GET"):  # aiperf asks for the models, and waits for an answer
            self._transport.write(MODELS)
            return
        self._left = self._tokens
        self._transport.write(HEAD + self._role)
        self._next()

    def _next(self) -> None:
        if self._transport.is_closing():
            return
        self._left -= 1
        self._transport.write(self._token if self._left else self._token + self._end)
        if self._left:
            asyncio.get_running_loop().call_later(self._gap_s, self._next)


async def main(port: int, tokens: int, gap_s: float) -> None:
    """Serve until the process ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Tokens(tokens, gap_s), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000))
