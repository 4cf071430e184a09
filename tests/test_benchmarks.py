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
from benchmarks.benches.floor import build, launch
from benchmarks.models import GAP, IDENTITY, Served
from benchmarks.payloads import payload
from benchmarks.recording import record
from benchmarks.servers import Server
from tpx.protocol.http2 import frames


def test_the_model_of_the_sequences_lies_where_the_server_reads_it_and_adds(tmp_path: Path) -> None:
    repository = write(tmp_path, "tpx")
    assert {model.name for model in repository.iterdir()} == set(STRATEGIES)
    for model in repository.iterdir():
        session = ort.InferenceSession(model / "1" / "model.onnx")
        inputs = {each.name: np.full((1, 1), 2, np.float32) for each in session.get_inputs()}
        inputs["CORRID"] = np.ones((1, 1), np.uint64)
        assert session.run(["OUTPUT"], inputs)[0].tolist() == [[4.0]]


@pytest.mark.e2e
@pytest.mark.skipif(not shutil.which("gcc"), reason="the floor is compiled with gcc")
def test_the_floor_repeats_recorded_answers_of_both_protocols_to_small_and_large_requests(
    tmp_path: Path,
) -> None:
    message = struct.pack(">BI", 0, 5) + b"hello"
    http = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    grpc = (
        frames.headers_frames(1, b"\x88", end_stream=False, max_frame_bytes=frames.DEFAULT_FRAME_BYTES)
        + frames.frame(frames.DATA, 0, 1, message)
        + frames.headers_frames(1, b"\x88", end_stream=True, max_frame_bytes=frames.DEFAULT_FRAME_BYTES)
    )
    program = build("gcc", tmp_path)
    with Server(launch(program, {"http": http, "grpc": grpc}, tmp_path), tmp_path) as floor:
        floor.wait_until_ready()
        for model in (IDENTITY, GAP):
            served = Served(model=model)
            assert record(payload(served, "http"), "http", floor.http_port) == http
            assert record(payload(served, "grpc"), "grpc", floor.grpc_port) == grpc
