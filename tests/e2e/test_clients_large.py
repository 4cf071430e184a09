"""Large bodies, both ways, from clients of several makers: every bit comes back."""

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.e2e.child import Child, serve
from tests.e2e.foreign import same, write_models
from tests.protocol.v2_requests import encode_infer_request
from tpx.protocol.tensors import Tensor

pytestmark = pytest.mark.e2e

Array = npt.NDArray[Any]
MEDIUM, HUGE = 150_000, 17_000_000
"""Floats that make 600 KB and 68 MB, which is more than the default limit."""


def floats(count: int) -> Array:
    """One row of values without a pattern that a lost or doubled piece would fit into, made quickly."""
    return (np.arange(count, dtype=np.int32) * 40_503 % 8_388_593).astype(np.float32).reshape(1, count)


def echo(module: Any, address: str, sent: Array, **how: bool) -> Any:
    with module.InferenceServerClient(address) as client:
        tensor = module.InferInput("x", sent.shape, "FP32").set_data_from_numpy(sent, **how)
        return client.infer("large", [tensor]).as_numpy("y")


def count_to(module: Any, address: str, count: int) -> Any:
    with module.InferenceServerClient(address) as client:
        tensor = module.InferInput("n", [1], "INT64").set_data_from_numpy(np.array([count], dtype=np.int64))
        return client.infer("counting", [tensor]).as_numpy("y")


def plain_http(address: str, sent: Array, *, chunk_bytes: int | None) -> bytes:
    """The output tensor as the standard library's client gets it, its body with a length or in chunks."""
    head, [tail] = encode_infer_request([Tensor.from_numpy("x", sent)])
    connection = http.client.HTTPConnection(address, timeout=60)
    headers = {"Inference-Header-Content-Length": str(len(head))}
    body: Any = [head, tail]
    if chunk_bytes is None:
        headers["Content-Length"] = str(len(head) + len(tail))
    else:
        view = memoryview(tail)
        body = [head, *(view[at : at + chunk_bytes] for at in range(0, len(view), chunk_bytes))]
    connection.request("POST", "/v2/models/large/infer", body, headers)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    assert response.status == 200, answer
    return answer[int(response.headers["Inference-Header-Content-Length"]) :]


# 600 KB, on the server that all share


def test_600_kb_over_http_and_grpc(http_address: str, grpc_address: str) -> None:
    sent = floats(MEDIUM)
    for _ in range(3):
        assert same(echo(tritonclient.http, http_address, sent), sent)
        assert same(echo(tritonclient.grpc, grpc_address, sent), sent)


def test_600_kb_as_json(http_address: str) -> None:
    sent = floats(MEDIUM)
    assert same(echo(tritonclient.http, http_address, sent, binary_data=False), sent)


@pytest.mark.parametrize("chunk_bytes", [None, 100, 16_384], ids=["whole", "tiny chunks", "chunks"])
def test_600_kb_from_another_http_client(http_address: str, chunk_bytes: int | None) -> None:
    sent = floats(MEDIUM)
    assert plain_http(http_address, sent, chunk_bytes=chunk_bytes) == sent.tobytes()


def test_a_megabyte_answers_a_few_bytes(http_address: str, grpc_address: str) -> None:
    for module, address in ((tritonclient.http, http_address), (tritonclient.grpc, grpc_address)):
        assert same(count_to(module, address, MEDIUM), np.arange(MEDIUM, dtype=np.int64))


# 68 MB, on a server of its own


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A server that takes bodies of 100 MB."""
    repository: Path = write_models(tmp_path_factory.mktemp("roomy"))
    with serve("--model-repository", repository, "--http-max-input-size=100000000") as child:
        yield child.ready()
        assert child.stop() == 0
        assert child.err == []


@pytest.mark.slow
def test_68_mb_in_chunks(roomy: Child) -> None:
    sent = floats(HUGE)
    address = f"127.0.0.1:{roomy.port('HTTPService')}"
    assert plain_http(address, sent, chunk_bytes=1 << 20) == sent.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_68_mb_from_tritonclient(roomy: Child, protocol: str) -> None:
    sent = floats(HUGE)
    module = tritonclient.http if protocol == "http" else tritonclient.grpc
    service = "HTTPService" if protocol == "http" else "GRPCInferenceService"
    assert same(echo(module, f"127.0.0.1:{roomy.port(service)}", sent), sent)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_68_mb_answer_a_few_bytes(roomy: Child, protocol: str) -> None:
    module = tritonclient.http if protocol == "http" else tritonclient.grpc
    service = "HTTPService" if protocol == "http" else "GRPCInferenceService"
    got = count_to(module, f"127.0.0.1:{roomy.port(service)}", HUGE // 2)
    assert same(got, np.arange(HUGE // 2, dtype=np.int64))
