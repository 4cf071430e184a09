"""Answers of vLLM's application, as they are written to ASGI, as views take them."""

import asyncio
import json
from typing import cast

import pytest

from tpx.serving.backends.language.generation import Generation
from tpx.serving.backends.python.worker.errors import ErrorCode
from tpx.serving.backends.vllm.asgi import AsgiCall

USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}


class Taken:
    """What a generation was given."""

    def __init__(self, choices: int = 1, endpoint: str = "completions") -> None:
        self.body = b"{}", choices
        self.endpoint = endpoint
        self.cancelled = False
        self.chunks: list[bytes] = []
        self.tokens = 0
        self.refused: tuple[str, int] | None = None

    def take(self, data: bytes, *, token: bool = True) -> bool:
        self.chunks += [data] if data else []
        self.tokens += token and bool(data)
        return self.cancelled

    def refuse(self, message: str, code: int) -> None:
        self.refused = message, code


def answer(taken: Taken, *parts: bytes, status: int = 200, kind: bytes = b"text/event-stream") -> AsgiCall:
    """The exchange after these parts of a body."""
    headers = [(b"content-type", kind)]
    exchange = AsgiCall(cast("Generation", taken))

    async def send() -> None:
        await exchange.send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts:
            await exchange.send({"type": "http.response.body", "body": part, "more_body": True})
        await exchange.send({"type": "http.response.body", "body": b""})

    asyncio.run(send())
    return exchange


def event(chunk: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(chunk, separators=(",", ":")).encode()


def piece(text: str, reason: str | None = None, index: int = 0, **more: object) -> dict[str, object]:
    return {"choices": [{"index": index, "text": text, "finish_reason": reason}], **more}


def test_pieces_pass_unread_and_the_last_has_the_numbers_of_tokens() -> None:
    taken = Taken()
    stream = b"".join(
        (
            event(piece("a")),
            event(piece("b")),
            event(piece("c", "stop")),
            event({"choices": [], "usage": USAGE}),
        )
    )
    answer(taken, stream[:20], stream[20:], b"data: [DONE]\n\n")
    assert taken.chunks[:2] == [event(piece("a"))[6:-2], event(piece("b"))[6:-2]]
    assert b'"timings":{' in taken.chunks[2], "as views look for it"
    assert json.loads(taken.chunks[2]) == {
        **piece("c", "stop"),
        "timings": {"prompt_n": 3, "cache_n": 2, "predicted_n": 3},
    }
    assert len(taken.chunks) == 3


def test_the_prompt_counts_for_each_choice_as_views_expect_it() -> None:
    taken = Taken(choices=2)
    answer(
        taken,
        event(piece("a", "stop", 0)),
        event(piece("b", "length", 1)),
        event({"choices": [], "usage": {**USAGE, "prompt_tokens_details": None}}),
    )
    first, last = map(json.loads, taken.chunks)
    assert "timings" not in first
    assert last["timings"] == {"prompt_n": 10, "cache_n": 0, "predicted_n": 3}


@pytest.mark.parametrize(
    ("status", "body", "refused"),
    [
        (400, b'{"error":{"message":"too long","code":400}}', ("too long", ErrorCode.INVALID_ARG)),
        (404, b'{"error":{"message":"none","code":404}}', ("none", ErrorCode.INVALID_ARG)),
        (500, b"", ("vLLM answers 500", ErrorCode.INTERNAL)),
        (500, b"Internal Server Error", ("Internal Server Error", ErrorCode.INTERNAL)),
        (200, event({"error": {"message": "lost", "code": 500}}), ("lost", ErrorCode.INTERNAL)),
    ],
)
def test_errors_end_the_request(status: int, body: bytes, refused: tuple[str, int]) -> None:
    taken = Taken()
    answer(taken, body[:9], body[9:], status=status)
    assert taken.refused == refused
    assert taken.chunks == []


def test_a_client_that_leaves_ends_the_connection() -> None:
    taken = Taken()

    async def leave() -> None:
        exchange = AsgiCall(cast("Generation", taken))
        assert (await exchange.receive())["body"] == b"{}"
        exchange.look()
        waiting = asyncio.ensure_future(exchange.receive())
        await asyncio.sleep(0)
        assert not waiting.done()
        taken.cancelled = True
        exchange.look()
        assert (await waiting)["type"] == "http.disconnect"
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
        await exchange.send({"type": "http.response.body", "body": event(piece("late"))})

    asyncio.run(leave())
    assert taken.chunks == []


def test_embeddings_are_one_answer() -> None:
    taken = Taken(endpoint="embeddings")
    answer(taken, b'{"data"', b":[]}", kind=b"application/json")
    assert (taken.chunks, taken.tokens) == ([b'{"data":[]}'], 0)


def test_events_of_responses_pass_with_their_lines_and_pieces_count_as_tokens() -> None:
    taken = Taken(endpoint="responses")
    names = ("response.created", "response.output_text.delta", "response.completed")
    events = [b'event: %b\ndata: {"type":"%b"}' % (name.encode(), name.encode()) for name in names]
    stream = b"\n\n".join([*events, b""])
    answer(taken, stream[:30], stream[30:])
    assert (taken.chunks, taken.tokens) == (events, 1)
