"""Requests leave no cycles: what they hold goes when they are answered, not when the collector comes."""

import gc
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from tests.serving.frontends.streams import STREAM, repeat, repeat_body, request, write_streaming_models
from tests.serving.live import Live, floats, infer_message, serving
from tests.waiting import eventually
from tpx.protocol.grpc.server_call import ServerCall
from tpx.protocol.http1.request import HttpRequest
from tpx.serving.ensemble.run import EnsembleRun
from tpx.serving.repository.discovery import Override
from tpx.serving.request import InferRequest

MANY = 20
X = floats([1, 2])
_IO = "input [{ name: 'x' data_type: TYPE_FP32 dims: [ -1 ] }] output [{ name: 'y' data_type: TYPE_FP32 "
_STEP = "input_map {{ key: '{0}' value: '{1}' }} output_map {{ key: '{2}' value: '{3}' }}"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    write_streaming_models(repository)
    (repository / "whole" / "1").mkdir(parents=True)
    (repository / "whole" / "config.pbtxt").write_text(
        f"platform: 'ensemble' max_batch_size: 4 {_IO} dims: [ -1 ] }}] ensemble_scheduling {{ step [ "
        f"{{ model_name: 'double' model_version: -1 {_STEP.format('x', 'x', 'y', 'y')} }} ] }}"
    )
    with serving(repository) as running:
        yield running


def over_http(live: Live, model: str) -> None:
    assert live.infer_binary(model, {"x": X}).status == 200


def over_grpc(live: Live, model: str) -> None:
    with live.channel() as channel:
        channel.infer(model, {"x": X})


def streamed(live: Live, message: bytes, answers: int) -> None:
    with live.channel() as channel:
        call = channel.raw.stream_stream(STREAM, None, None)
        assert len(list(call(iter([message])))) == answers


ASKED: dict[str, Callable[[Live], None]] = {
    "http": lambda live: over_http(live, "double"),
    "http, an ensemble": lambda live: over_http(live, "whole"),
    "grpc": lambda live: over_grpc(live, "double"),
    "grpc, an ensemble": lambda live: over_grpc(live, "whole"),
    "a stream": lambda live: streamed(live, infer_message("double", {"x": X}), 1),
    "a stream, an ensemble": lambda live: streamed(live, infer_message("whole", {"x": X}), 1),
    "a stream, decoupled": lambda live: streamed(live, request("repeat", repeat([1, 2])), 2),
    "a stream, refused": lambda live: streamed(live, infer_message("nobody", {"x": X}), 1),
    "generate": lambda live: generate(live, "generate", repeat_body([1])),
    "generate_stream": lambda live: generate(live, "generate_stream", repeat_body([1, 2])),
}


def generate(live: Live, verb: str, body: bytes) -> None:
    assert live.http("POST", f"/v2/models/repeat/{verb}", body).status == 200


def kept() -> Counter[str]:
    """What requests are made of, by kind."""
    kinds = (InferRequest, HttpRequest, ServerCall, EnsembleRun)
    return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, kinds))


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_what_a_request_holds_goes_with_its_answer(live: Live, ask: Callable[[Live], None]) -> None:
    ask(live)
    gc.collect()
    gc.disable()
    try:
        before = kept()
        for _ in range(MANY):
            ask(live)
        eventually(lambda: not any(count > 2 for count in (kept() - before).values()))
    finally:
        gc.enable()


def test_the_files_of_a_failed_load_go_with_its_answer(tmp_path: Path) -> None:
    body = orjson.dumps({"parameters": {"config": "{}", "file:1/model.onnx": b64encode(b"junk").decode()}})
    with serving(tmp_path, model_control_mode="explicit") as live:
        gc.disable()
        try:
            for _ in range(3):
                assert live.http("POST", "/v2/repository/models/net/load", body).status == 400
            eventually(lambda: not any(isinstance(each, Override) for each in gc.get_objects()))
        finally:
            gc.enable()
