"""HTTP clients on one connection each: JSON, binary tensors, raw bodies, strings, compression, generate."""

import gzip
import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.protocol.v2_requests import encode_infer_request
from tests.soak.traffic import Target, expect
from tpx.protocol.tensors import Tensor, decode_bytes, encode_bytes

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response that was a success."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def tail(self) -> bytes:
        """The bytes behind the JSON."""
        return self.body[int(self.headers["inference-header-content-length"]) :]


class Connection:
    """A kept-alive connection on which everything must succeed."""

    def __init__(self, target: Target) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", target.http_port, timeout=30)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """One exchange; raises Wrong for any status but 200."""
        status, answer = self.outcome(method, path, body, **headers)
        expect(status == 200, f"{method} {path} was answered {status}: {answer.body[:300]!r}")
        return answer

    def outcome(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Answer]:
        """One exchange, however it ends."""
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        self._http.request(method, path, body or None, sent)
        response = self._http.getresponse()
        received = {name.lower(): text for name, text in response.getheaders()}
        return response.status, Answer(headers=received, body=response.read())

    def infer(self, model: str, rows: Floats, *, packed: bool = False) -> Floats:
        """Inference with binary tensors both ways."""
        head, tail = encode_infer_request([Tensor.from_numpy("x", rows)])
        body = head + b"".join(bytes(part) for part in tail)
        headers = {"Inference-Header-Content-Length": str(len(head))}
        if packed:
            body = gzip.compress(body, 1)
            headers |= {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
        answer = self.ask("POST", f"/v2/models/{model}/infer", body, **headers)
        if packed:
            expect(answer.headers.get("content-encoding") == "gzip", "the answer is not compressed")
            answer = Answer(headers=answer.headers, body=gzip.decompress(answer.body))
        return np.frombuffer(answer.tail, np.float32).reshape(rows.shape)

    def close(self) -> None:
        self._http.close()


def random_rows(rng: np.random.Generator, large: float = 0) -> Floats:
    """One to four rows of numbers whose double is exact; a part `large` of them has a quarter megabyte a row.

    There are few shapes: a server remembers what it has seen, and that it does is no growth.
    """
    width = 60_000 if rng.random() < large else int(rng.integers(1, 20))
    return rng.integers(-1000, 1000, (int(rng.integers(1, 5)), width)).astype(np.float32)


def check_double(got: Floats, rows: Floats, how: str) -> None:
    """Raises Wrong unless every element is twice what was sent."""
    expect(np.array_equal(got, rows * 2), f"{how}: double of {rows.tolist()} is not {got.tolist()}")


def binary(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """Binary tensors, now and then a large one or a compressed one."""
    connection = Connection(target)
    try:
        while True:
            rows = random_rows(rng, large=0.02)
            check_double(connection.infer("double", rows, packed=rng.random() < 0.1), rows, "binary")
            yield 1
    finally:
        connection.close()


def mixed(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """JSON, raw bodies, strings, generate, and what monitoring asks for, in turn."""
    connection = Connection(target)
    try:
        while True:
            for ask in (_json, _raw, _strings, _generate, _described):
                ask(connection, rng)
                yield 1
    finally:
        connection.close()


def _json(connection: Connection, rng: np.random.Generator) -> None:
    rows = random_rows(rng)
    item = {"name": "x", "datatype": "FP32", "shape": rows.shape, "data": rows.tolist()}
    request_id = str(rng.integers(1 << 60))
    body = json.dumps({"id": request_id, "inputs": [item]}).encode()
    answer = connection.ask("POST", "/v2/models/double/infer", body).json
    expect(answer["id"] == request_id, f"request {request_id} got the answer of {answer['id']}")
    got = np.array(answer["outputs"][0]["data"], np.float32).reshape(answer["outputs"][0]["shape"])
    check_double(got, rows, "JSON")


def _raw(connection: Connection, rng: np.random.Generator) -> None:
    row = random_rows(rng)[:1]
    headers = {"Inference-Header-Content-Length": "0"}
    answer = connection.ask("POST", "/v2/models/double/infer", row.tobytes(), **headers)
    check_double(np.frombuffer(answer.tail, np.float32).reshape(row.shape), row, "raw")


def _strings(connection: Connection, rng: np.random.Generator) -> None:
    words = [b"w" * int(size) for size in rng.integers(0, 300, int(rng.integers(1, 8)))]
    tensor = Tensor("x", "BYTES", [1, len(words)], encode_bytes(words))
    head, tail = encode_infer_request([tensor])
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = connection.ask("POST", "/v2/models/words/infer", head + b"".join(map(bytes, tail)), **headers)
    expect(decode_bytes(answer.tail, len(words)) == words, "strings came back as others")


def _generate(connection: Connection, rng: np.random.Generator) -> None:
    row = random_rows(rng)[0]
    body = json.dumps({"x": row.tolist()}).encode()
    answer = connection.ask("POST", "/v2/models/double/generate", body).json
    check_double(np.array(answer["y"], np.float32).reshape(-1), row, "generate")


def _described(connection: Connection, rng: np.random.Generator) -> None:
    paths = ("/v2/health/live", "/v2/models/double/ready", "/v2/models/double", "/v2/models/stats", "/v2")
    path = paths[int(rng.integers(len(paths)))]
    answer = connection.ask("GET", path)
    if path == "/v2/models/double":
        expect(answer.json["name"] == "double", f"the metadata of double are those of {answer.json['name']}")
