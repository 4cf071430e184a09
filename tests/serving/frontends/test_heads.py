"""The memory of message heads: a known head is a shortcut, and never an excuse or a mix-up."""

import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import grpc
import psutil
import pytest

from tests.serving.frontends.requests import binary_head, grpc_request, refusal, refused
from tests.serving.live import Channel, Live, floats, outputs_of
from tests.serving.transports import Given, Refused, Transport
from tpx.protocol import messages
from tpx.protocol.compression import Inflater
from tpx.protocol.http1.head import parse_request_head
from tpx.protocol.http1.request import HttpRequest
from tpx.protocol.protobuf_contents import encode_varint
from tpx.serving.frontends.http_infer import HttpInference, InferRoute
from tpx.serving.frontends.load_report import LoadReport
from tpx.serving.inference_plane import InferencePlane


def test_the_same_head_with_other_data_gets_its_own_answer(transport: Transport) -> None:
    for n in range(20):
        assert transport.infer("double", Given(values=[n, -n])).values == {"y": [[2 * n, -2 * n]]}


def test_heads_of_other_models_versions_and_ids_are_not_mixed_up(transport: Transport) -> None:
    for n in range(4):
        assert transport.infer("double", Given()).values == {"y": [[2, 4]]}
        for version, expected in (("1", [2, 4]), ("3", [1, 2])):
            answer = transport.infer("versions", Given(), version=version)
            assert (answer.version, answer.values) == (version, {"y": [expected]})
        for _ in range(2):
            answer = transport.infer("double", Given(values=[n, n]), request_id=f"id-{n}")
            assert (answer.request_id, answer.values) == (f"id-{n}", {"y": [[2 * n, 2 * n]]})


def test_strings_behind_the_same_head_may_have_other_lengths(transport: Transport) -> None:
    for words in ([b"ab", b"c"], [b"a", b"bc"], [b"", b"abc"]):
        assert transport.infer("words", Given(datatype="BYTES", values=words)).values == {"y": [words]}


def test_a_head_that_was_refused_is_refused_again(transport: Transport) -> None:
    for _ in range(3):
        with pytest.raises(Refused, match="input byte size mismatch"):
            transport.infer("double", Given(shape=(1, 3)))


def test_more_heads_than_are_remembered_are_all_answered(transport: Transport) -> None:
    for n in range(1100):
        answer = transport.infer("double", Given(values=[n, 1]), parameters={"n": n})
        assert answer.values == {"y": [[2 * n, 2]]}


def test_two_inputs_behind_a_remembered_head_keep_their_order(transport: Transport) -> None:
    for names, sign in (("ab", 1), ("ba", -1)):
        for n in range(3):
            given = [
                Given(name=name, values=values)
                for name, values in zip(names, ([n, n], [10, 20]), strict=True)
            ]
            answer = transport.infer("two", *given, outputs=[{"name": "difference"}])
            assert answer.values == {"difference": [[sign * (n - 10), sign * (n - 20)]]}


# over HTTP


def answered(live: Live, head: bytes, tail: bytes, model: str = "double", **more: str) -> bytes:
    """The binary tensors of the answer to a request given as bytes."""
    sent = {"Inference-Header-Content-Length": str(len(head)), **more}
    answer = live.infer(model, head, tail, **sent)
    assert answer.status == 200, answer.body
    return answer.tail


class Sliced(bytes):
    """A body that notes the longest part that was cut from it."""

    longest = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        Sliced.longest = max(Sliced.longest, len(part) if isinstance(part, bytes) else 1)
        return part


class OneLongRequest:
    """A plane that decodes a long request later."""

    generation, max_string_elements, limit_bytes = 0, 1000, 1 << 30

    def __init__(self) -> None:
        self.offload = self
        self.sizes: list[int] = []

    def decode(self, size: int, *_: object) -> Callable[[], None]:
        self.sizes.append(size)
        return lambda: None


def test_a_head_too_long_to_be_remembered_is_not_looked_for_among_those_that_are() -> None:
    """Copying and hashing tens of megabytes would hold up the event loop."""
    plane = OneLongRequest()
    inference = HttpInference(
        cast("InferencePlane", plane), 1 << 30, cast("Inflater", None), cast("LoadReport", None)
    )
    path, size = b"/v2/models/m/infer", 20 << 20
    head = parse_request_head(
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: %d\r\n\r\n" % (path, size)
    )
    match = re.fullmatch("/v2/models/(?P<model>[^/]+)(/versions/(?P<version>.+))?/infer", path.decode())
    assert match is not None
    route = InferRoute(inference, head, match)
    inference.serve(cast("HttpRequest", SimpleNamespace(body=Sliced(size + 8))), route)
    assert plane.sizes == [size], "it is decoded in another thread"
    assert Sliced.longest == 0


BINARY = json.dumps(binary_head(parameters={"binary_data_output": True})).encode()


def test_a_remembered_head_does_not_excuse_a_body_that_is_cut_or_longer(live: Live) -> None:
    answered(live, BINARY, bytes(8))
    answered(live, BINARY, bytes(8))
    assert "expecting 1 additional bytes" in refusal(live, BINARY, bytes(7))
    assert "unexpected additional input data" in refusal(live, BINARY, bytes(9))
    assert "expecting 8 additional bytes" in refusal(
        live, BINARY, b"", **{"Inference-Header-Content-Length": str(len(BINARY))}
    )


def test_heads_are_not_remembered_without_end(live: Live) -> None:
    """Neither many nor large ones: what a client can make the server keep is bounded in bytes."""
    process = psutil.Process()
    before = process.memory_info().rss
    padding = " " * (1 << 20)
    for n in range(150):
        head = json.dumps(binary_head(parameters={"binary_data_output": True, "n": n})) + padding
        assert answered(live, head.encode(), floats([n, n]).tobytes()) == floats([2 * n, 2 * n]).tobytes()
    assert process.memory_info().rss - before < 60 << 20


# over gRPC


def raw_field(data: bytes) -> bytes:
    """One raw_input_contents entry as encoders write it."""
    return b"\x3a" + encode_varint(len(data)) + data


def start(**fields: Any) -> bytes:
    """A message up to its tensors."""
    data: bytes = grpc_request(**fields).SerializeToString()
    return data


def answer_of(channel: Channel, data: bytes) -> dict[str, Any]:
    """The outputs for a message given as bytes."""
    return outputs_of(messages.ModelInferResponse.FromString(channel.send("ModelInfer", data)))


def test_a_remembered_head_does_not_excuse_a_message_that_lies(channel: Channel) -> None:
    good = start() + raw_field(floats([1, 2]).tobytes())
    for _ in range(3):
        assert answer_of(channel, good) == {"y": [[2, 4]]}
    tensor = floats([1, 2]).tobytes()
    cut, longer = raw_field(tensor)[:-1], raw_field(tensor + b"\0")
    assert refused(channel, start() + cut)
    assert refused(channel, start() + longer)
    assert refused(channel, start() + raw_field(tensor) * 2)
    assert refused(channel, start() + raw_field(tensor[:4]))
    assert refused(channel, start())
    # the right length, but another field and another framing
    assert refused(channel, start() + b"\x42" + raw_field(tensor)[1:])
    assert refused(channel, start() + b"\x3a\x07" + tensor)
    assert refused(channel, start() + b"\x3a\x09" + tensor)


def test_a_field_behind_the_tensors_is_not_overlooked(channel: Channel) -> None:
    tensor = raw_field(floats([1, 2]).tobytes())
    for _ in range(2):
        assert answer_of(channel, start() + tensor) == {"y": [[2, 4]]}
    more = messages.ModelInferRequest(id="late").SerializeToString()
    answer = messages.ModelInferResponse.FromString(channel.send("ModelInfer", start() + tensor + more))
    assert (answer.id, outputs_of(answer)) == ("late", {"y": [[2, 4]]})
    unknown = messages.ModelInferRequest()
    unknown.outputs.add(name="z")
    assert "unexpected inference output 'z'" in refused(
        channel, start() + tensor + unknown.SerializeToString()
    )


def test_a_length_that_is_written_longer_than_need_be_is_understood(channel: Channel) -> None:
    tensor = floats([1, 2]).tobytes()
    for data in (raw_field(tensor), b"\x3a\x88\x00" + tensor, raw_field(tensor)):
        assert answer_of(channel, start() + data) == {"y": [[2, 4]]}


def test_a_cancelled_call_does_not_disturb_the_next(live: Live, channel: Channel) -> None:
    address = f"127.0.0.1:{live.ports['GRPCInferenceService']}"
    with grpc.insecure_channel(address) as other:
        call = other.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
        data = start() + raw_field(floats([9, 9]).tobytes())
        for _ in range(50):
            call.future(data).cancel()
        assert answer_of(channel, start() + raw_field(floats([1, 2]).tobytes())) == {"y": [[2, 4]]}
