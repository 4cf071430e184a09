"""A service with OpenAI's API in virtual time, which writes down when each token left."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.perf.virtual import VirtualLoop, run_virtually
from tpx.argv import from_argv
from tpx.perf.options import SessionSpec
from tpx.perf.results import LevelResult
from tpx.perf.run import run

FIRST_S, GAP_S = 0.2013, 0.0307
"""Times to the first event and between events of a steady stream."""
ROLE = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How one stream is written: `gaps` before each further event, in units of GAP_S."""

    first: float = 1.0
    """Time to the first event, in units of FIRST_S."""
    gaps: tuple[float, ...] = (1, 1, 1)
    tokens: int = 1
    """Tokens of every event."""
    reasoning: int = 0
    """Leading events that are reasoning."""
    splits: bool = False
    """True if an event comes in two pieces, the first of which ends within a character."""
    usage_after: float = 0.0
    """Gaps from the last token to the count of tokens."""
    closes: bool = False
    """True if the stream ends with its connection."""
    announces: bool = False
    """True if the head says that the connection stays, before it is closed."""


MANNERS = (
    Manner(),
    Manner(tokens=3, usage_after=1),
    Manner(gaps=(1, 0, 0, 1), closes=True),  # a burst
    Manner(gaps=(1, 4, 1), reasoning=2),  # a stall
    Manner(first=2, splits=True),
    Manner(gaps=(), closes=True, announces=True),
)


@dataclass
class Stream:
    """What really happened to one request."""

    manner: Manner
    received_ns: int
    body: Any = None
    left_ns: list[int] = field(default_factory=list)
    """When each event with output had left."""
    ended_ns: int = 0

    @property
    def tokens(self) -> int:
        return self.manner.tokens * (1 + len(self.manner.gaps))

    @property
    def figures(self) -> dict[str, list[int]]:
        """The values of each figure by the definitions of the documentation, worked out one by one."""
        first, last = self.left_ns[0], self.left_ns[-1]
        return {
            "latency": [last - self.received_ns],
            "ttft": [first - self.received_ns],
            "ttst": [at - first for at in self.left_ns[1:2]],
            "ttfo": [self.left_ns[self.manner.reasoning] - self.received_ns],
            "itl": [(last - first) // (self.tokens - 1)] if self.tokens > 1 else [],
            "icl": [after - before for before, after in zip(self.left_ns, self.left_ns[1:], strict=False)],
            "output_tokens": [self.tokens],
            "input_tokens": [12],
        }


class KnownTokens(asyncio.Protocol):
    """One connection; every request is answered in the next manner."""

    def __init__(self, loop: VirtualLoop, streams: list[Stream]) -> None:
        self._loop = loop
        self._streams = streams
        self._writing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:  # requests are small: each comes in one piece
        manner = MANNERS[len(self._streams) % len(MANNERS)]
        body = json.loads(data.partition(b"\r\n\r\n")[2])
        self._streams.append(Stream(manner, self._loop.now_ns(), body))
        self._writing = asyncio.ensure_future(self._answer(manner, self._streams[-1]))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._writing is not None:
            self._writing.cancel()

    async def _answer(self, manner: Manner, stream: Stream) -> None:
        chunked = not manner.closes or manner.announces
        framing = b"Transfer-Encoding: chunked" if chunked else b"Connection: close"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n%b\r\n\r\n" % framing
        self._transport.write(head + self._framed(_event(ROLE), chunked=chunked))
        waits = [manner.first * FIRST_S, *(gap * GAP_S for gap in manner.gaps)]
        at = 0
        while at < len(waits):
            burst = [n for n in range(at, len(waits)) if n == at or not any(waits[at + 1 : n + 1])]
            events = b"".join(_event(_piece(n, manner)) for n in burst)
            await asyncio.sleep(waits[at] / 2)
            if manner.splits:
                cut = events.index("ü".encode()) + 1
                self._transport.write(self._framed(events[:cut], chunked=chunked))
                events = events[cut:]
            await asyncio.sleep(waits[at] / 2)
            stream.left_ns += [self._loop.now_ns()] * len(burst)
            self._transport.write(self._framed(events, chunked=chunked))
            at = burst[-1] + 1
        if manner.usage_after:
            await asyncio.sleep(manner.usage_after * GAP_S)
        usage = {"prompt_tokens": 12, "completion_tokens": stream.tokens}
        details = {"completion_tokens_details": {"reasoning_tokens": manner.reasoning}}
        end = _event({"choices": [], "usage": usage | details}) + b"data: [DONE]\n\n"
        stream.ended_ns = self._loop.now_ns()
        self._transport.write(self._framed(end, chunked=chunked) + (b"0\r\n\r\n" if chunked else b""))
        if manner.closes:
            self._transport.close()

    def _framed(self, data: bytes, *, chunked: bool) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if chunked else data


def _piece(number: int, manner: Manner) -> dict[str, Any]:
    member = "reasoning_content" if number < manner.reasoning else "content"
    return {"choices": [{"delta": {member: "für " * manner.tokens}}]}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def measured(monkeypatch: pytest.MonkeyPatch, words: str) -> tuple[LevelResult, list[Stream]]:
    """A run in virtual time, and what the service did in it."""
    streams: list[Stream] = []

    async def scene(loop: VirtualLoop) -> LevelResult:
        loop.serve = lambda: KnownTokens(loop, streams)
        service = "-m llm --service-kind openai --endpoint v1/chat/completions --streaming"
        (level,) = (await run(from_argv(SessionSpec, f"{service} {words}".split()))).levels
        return level

    return run_virtually(monkeypatch, scene), streams
