"""Requests whose clients change their mind: nothing is computed for nobody, and the others are answered."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.hostile import wire
from tests.hostile.siege import GOOD, SERVICE, Siege
from tests.hostile.test_crowds import pending
from tests.hostile.test_http2 import inference
from tests.waiting import eventually
from tpx.protocol import messages

pytestmark = [pytest.mark.e2e]


def identity(data: bytes) -> bytes:
    """Messages are serialized here, not by the library."""
    return data


def test_g9_a_call_that_is_cancelled_is_computed_for_nobody(siege: Siege) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{siege.grpc}") as channel:
        method = channel.unary_unary(SERVICE + "ModelInfer", identity, identity)
        calls = [method.future(inference()) for _ in range(6)]
        eventually(lambda: pending(siege) == 6)
        for call in calls[::2]:
            call.cancel()
        assert all(call.code() is grpc.StatusCode.CANCELLED for call in calls[::2])
        assert all(call.result(timeout=30) for call in calls[1::2])
    eventually(lambda: not pending(siege))
    siege.alive()


def test_g9_a_deadline_that_passes_ends_its_call_only(siege: Siege) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{siege.grpc}") as channel:
        method = channel.unary_unary(SERVICE + "ModelInfer", identity, identity)
        short = [method.future(inference(), timeout=0.05) for _ in range(3)]
        long = [method.future(inference(), timeout=30) for _ in range(3)]
        assert all(call.code() is grpc.StatusCode.DEADLINE_EXCEEDED for call in short)
        assert all(call.result() for call in long)
    eventually(lambda: not pending(siege))


def test_g9_a_stream_goes_on_behind_a_bad_request(siege: Siege) -> None:
    bad = [inference("nobody"), b"\xff\xff\xff", b"", inference("double", 2) + b"\x3a\x01x"]

    def requests() -> Iterator[bytes]:
        for message in bad:
            yield message
            yield inference("double")

    with grpc.insecure_channel(f"127.0.0.1:{siege.grpc}") as channel:
        method = channel.stream_stream(
            SERVICE + "ModelStreamInfer", identity, messages.ModelStreamInferResponse.FromString
        )
        answers: list[Any] = list(method(requests(), timeout=10))
    assert [bool(answer.error_message) for answer in answers] == [True, False] * len(bad)
    siege.alive()


def test_g9_a_stream_that_is_cancelled_takes_its_requests_along(siege: Siege) -> None:
    """Also those of a decoupled model, in the middle of its responses."""
    message = messages.ModelInferRequest(model_name="repeat")
    for name, datatype, count in (("IN", "INT32", 1000), ("DELAY", "UINT32", 1000), ("WAIT", "UINT32", 1)):
        message.inputs.add(name=name, datatype=datatype, shape=[count])
        number = 10 if name == "DELAY" else 0
        message.raw_input_contents.append(number.to_bytes(4, "little") * count)
    go_on = threading.Event()

    def requests() -> Iterator[bytes]:
        yield message.SerializeToString()
        yield inference()
        go_on.wait(10)

    with grpc.insecure_channel(f"127.0.0.1:{siege.grpc}") as channel:
        for _ in range(5):
            call = channel.stream_stream(SERVICE + "ModelStreamInfer", identity, identity)(requests())
            next(call)
            call.cancel()
        go_on.set()
    eventually(lambda: not pending(siege))
    siege.alive()


def test_l1_a_full_queue_refuses_and_answers_those_it_has(siege: Siege) -> None:
    """Two wait for some time; who comes meanwhile is refused at once."""
    socks = [wire.connect(siege.http) for _ in range(2)]
    for sock in socks:
        sock.sendall(wire.post_request("/v2/models/narrow/infer", GOOD))
    eventually(lambda: pending(siege) == 2)
    answer = wire.post(siege.http, "/v2/models/narrow/infer", GOOD)
    assert (answer.status, "Exceeds maximum queue size" in answer.error) == (503, True)
    with pytest.raises(grpc.RpcError) as caught:
        siege.call("ModelInfer", inference("narrow"))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "Exceeds maximum queue size" in caught.value.details()
    for sock in socks:
        assert wire.read_answer(sock).status == 200
        sock.close()
    eventually(lambda: not pending(siege))


def test_an_http_client_that_leaves_in_the_middle_of_events_ends_them(siege: Siege) -> None:
    many = {"IN": [1] * 1000, "DELAY": [10] * 1000, "WAIT": 0}
    for _ in range(5):
        with wire.connect(siege.http) as sock:
            sock.sendall(wire.post_request("/v2/models/repeat/generate_stream", many))
            assert sock.recv(10).startswith(b"HTTP/1.1 ")
    eventually(lambda: not pending(siege))
    siege.alive()
