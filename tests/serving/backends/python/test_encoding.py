"""Responses of a model's process: which of them a template can replace."""

import pytest

from tests.serving.fakes import request_of
from tpx.serving.backends.python.encoding import AnswerDecoder
from tpx.serving.backends.python.worker import frames
from tpx.serving.request import InferResponse
from tpx.serving.transport.memory import Blocks, Buffer, create_memory

SMALL, LARGE = b"1234abcd", bytes(frames.INLINE_BELOW_BYTES)


@pytest.mark.parametrize(
    ("names", "data", "parameters", "repeats"),
    [
        ("y", SMALL, "", True),
        ("y", LARGE, "", False),
        ("y", SMALL, '{"n":1}', False),
        ("yz", SMALL, "", False),
        ("z", SMALL, "", False),
        ("", b"", "", False),
    ],
    ids=["one tensor", "in shared memory", "a parameter", "two tensors", "not requested", "none"],
)
def test_a_response_of_one_small_tensor_begins_as_others_like_it(
    names: str, data: bytes, parameters: str, repeats: bool
) -> None:
    _, memory = create_memory(1 << 20)
    extra = {"parameters": parameters} if parameters else {}
    head = frames.encode_head([(name, "FP32", (1, len(data) // 4)) for name in names], extra)
    start = frames.STATUS.pack(frames.TENSORS, len(head)) + head
    parts: list[Buffer] = [start]
    frames.add_tensors(parts, [data] * len(names), Blocks(memory))
    body = b"".join(parts)
    decoder = AnswerDecoder(None)
    response, _ = decoder.take(request_of(), body, 0, memory)
    assert isinstance(response, InferResponse)
    found = decoder.start_of_piece(response, body, 0)
    assert found == (start + frames.NUMBER.pack(frames.INLINE) if repeats else b"")
    assert not repeats or body[len(found) + frames.NUMBER.size :] == data
