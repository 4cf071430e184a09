"""The models of the benchmarks, which run by themselves for too long to be tests, and the floor they are held
against.
"""

import shutil
import struct
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from benchmarks.accumulators import STRATEGIES, write
from benchmarks.benches.floor import bare_program, build, launch
from benchmarks.models import GAP, IDENTITY, Model, ModelStore, Served
from benchmarks.payloads import Protocol, payload
from benchmarks.payloads import expected as expected_outputs
from benchmarks.recording import record
from benchmarks.servers import Launch, Server
from tpx.protocol.http2 import frames


def test_the_model_of_the_sequences_lies_where_the_server_reads_it_and_adds(tmp_path: Path) -> None:
    repository = write(tmp_path, "tpx")
    assert {model.name for model in repository.iterdir()} == set(STRATEGIES)
    for model in repository.iterdir():
        session = ort.InferenceSession(model / "1" / "model.onnx")
        inputs = {each.name: np.full((1, 1), 2, np.float32) for each in session.get_inputs()}
        inputs["CORRID"] = np.ones((1, 1), np.uint64)
        assert session.run(["OUTPUT"], inputs)[0].tolist() == [[4.0]]


def answers(message: bytes) -> dict[Protocol, bytes]:
    """Return an answer of both protocols with this message."""
    most = frames.DEFAULT_FRAME_BYTES
    return {
        "http": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(message), message),
        "grpc": frames.headers_frames(1, b"\x88", end_stream=False, max_frame_bytes=most)
        + frames.frame(frames.DATA, 0, 1, struct.pack(">BI", 0, len(message)) + message)
        + frames.headers_frames(1, b"\x88", end_stream=True, max_frame_bytes=most),
    }


def assert_answers(command: Launch, directory: Path, model: Model, expected: dict[Protocol, bytes]) -> None:
    served = Served(model=model)
    with Server(command, directory) as server:
        server.wait_until_ready()
        for protocol, answer in expected.items():
            assert record(payload(served, protocol), protocol, server.port(protocol)) == answer


@pytest.mark.e2e
@pytest.mark.skipif(not shutil.which("gcc"), reason="the floor is compiled with gcc")
@pytest.mark.parametrize("model", [IDENTITY, GAP])
def test_the_floor_repeats_recorded_answers_to_small_and_large_requests(tmp_path: Path, model: Model) -> None:
    program = build("gcc", tmp_path)
    expected = answers(b"hello")
    assert_answers(launch("floor", (program,), expected, tmp_path), tmp_path, model, expected)


@pytest.mark.e2e
@pytest.mark.parametrize("model", [IDENTITY, GAP])
def test_the_bare_server_computes_small_and_large_requests(tmp_path: Path, model: Model) -> None:
    onnx = ModelStore(tmp_path).onnx(model)
    [array] = expected_outputs(model, onnx).values()
    expected = answers(b"before" + array.tobytes() + b"after")
    command = launch("bare", bare_program(onnx, model), expected, tmp_path)
    assert_answers(command, tmp_path, model, expected)
