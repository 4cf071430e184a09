"""Clients whose tensors are in shared memory: regions come and go, and some are cut short."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.soak.kinds.over_grpc import TIMEOUT_S, channel_to, infer_call
from tests.soak.kinds.over_http import Connection, check_double, random_rows
from tests.soak.traffic import Target, expect
from tpx.protocol import messages

SIZE = 64 << 10
OUTPUT = SIZE // 2
EXCHANGES = 20
"""With one region, before it is unregistered."""


@contextmanager
def region(connection: Connection, name: str) -> Iterator[Path]:
    """A new file that is registered under a name."""
    path = Path(f"/dev/shm/tpx_soak_{os.getpid()}_{name}")
    path.write_bytes(bytes(SIZE))
    verbs = f"/v2/systemsharedmemory/region/{path.name}"
    try:
        body = {"key": f"/{path.name}", "offset": 0, "byte_size": SIZE}
        connection.ask("POST", verbs + "/register", json.dumps(body).encode())
        yield path
    finally:
        connection.ask("POST", verbs + "/unregister")
        path.unlink()


def over_http(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """Input and output in one region; at the end it is cut short, and that is told as the client's fault."""
    connection = Connection(target)
    try:
        while True:
            with region(connection, "http") as path:
                for _ in range(EXCHANGES):
                    rows = _put(path, random_rows(rng))
                    connection.ask("POST", "/v2/models/double/infer", _json_request(path, rows))
                    check_double(_taken(path, rows), rows, "shared memory, HTTP")
                    yield 1
                os.truncate(path, 0)
                status, _ = connection.outcome("POST", "/v2/models/double/infer", _json_request(path, rows))
                expect(status == 400, f"a region that was cut short is answered {status}")
                yield 1
    finally:
        connection.close()


def over_grpc(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """Input and output in one region; its file is removed when it has been registered."""
    connection = Connection(target)
    try:
        with channel_to(target) as channel:
            infer = infer_call(channel)
            while True:
                with region(connection, "grpc") as path:
                    for _ in range(EXCHANGES):
                        rows = _put(path, random_rows(rng))
                        data = infer(_grpc_request(path, rows), timeout=TIMEOUT_S)
                        [in_answer] = messages.ModelInferResponse.FromString(data).raw_output_contents
                        expect(in_answer == b"", "an output in shared memory is in the answer, too")
                        check_double(_taken(path, rows), rows, "shared memory, gRPC")
                        yield 1
    finally:
        connection.close()


def _put(path: Path, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    with path.open("r+b") as file:
        file.write(rows.tobytes())
        file.seek(OUTPUT)
        file.write(b"\xff" * rows.nbytes)
    return rows


def _taken(path: Path, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    with path.open("rb") as file:
        file.seek(OUTPUT)
        return np.frombuffer(file.read(rows.nbytes), np.float32).reshape(rows.shape)


def _places(path: Path, rows: npt.NDArray[np.float32]) -> tuple[dict[str, Any], dict[str, Any]]:
    common = {"shared_memory_region": path.name, "shared_memory_byte_size": rows.nbytes}
    return {**common, "shared_memory_offset": 0}, {**common, "shared_memory_offset": OUTPUT}


def _json_request(path: Path, rows: npt.NDArray[np.float32]) -> bytes:
    source, place = _places(path, rows)
    item = {"name": "x", "datatype": "FP32", "shape": rows.shape, "parameters": source}
    return json.dumps({"inputs": [item], "outputs": [{"name": "y", "parameters": place}]}).encode()


def _grpc_request(path: Path, rows: npt.NDArray[np.float32]) -> bytes:
    source, place = _places(path, rows)
    request = messages.ModelInferRequest(model_name="double")
    tensors = (
        (request.inputs.add(name="x", datatype="FP32", shape=rows.shape), source),
        (request.outputs.add(name="y"), place),
    )
    for tensor, parameters in tensors:
        for key, value in parameters.items():
            field = "string_param" if isinstance(value, str) else "int64_param"
            setattr(tensor.parameters[key], field, value)
    data: bytes = request.SerializeToString()
    return data
