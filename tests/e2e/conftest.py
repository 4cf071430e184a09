"""One `tpx serve` for all foreign clients of a session: what one of them breaks, the next one notices."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.child import Child, serve
from tests.serving.onnx_files import TYPES, busy, doubling, graph, identity, node, value, write_model
from tpx.examples import write

DELAY_S = 1.0
"""How long `patient` lets a request wait, which costs no CPU."""


def counting() -> Any:
    """y = 0, 1, ... n - 1: an answer as large as one asks for."""
    nodes = [node("Squeeze", ["n"], ["limit"]), node("Range", ["zero", "limit", "one"], ["y"])]
    constants = [
        node("Constant", [], ["zero"], value_int=0),
        node("Constant", [], ["one"], value_int=1),
    ]
    return graph([*constants, *nodes], [value("n", "INT64", 1)], [value("y", "INT64", "many")])


def write_models(repository: Path) -> Path:
    """The small examples, an identity of every datatype, and the models that are hard on a client."""
    write(repository, ["add_sub", "identity", "mnist"])
    for datatype in TYPES:
        write_model(repository, f"echo_{datatype.lower()}", identity(datatype, "batch", "n"))
    write_model(repository, "large", identity("FP32", 1, "n"))
    write_model(repository, "counting", counting())
    delay = f"dynamic_batching {{ max_queue_delay_microseconds: {int(DELAY_S * 1e6)} }}"
    write_model(repository, "patient", doubling(), f"max_batch_size: 8 {delay}")
    write_model(repository, "busy", busy(rounds=50), "max_batch_size: 8")
    return repository


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A server that must have had nothing to complain of when the last client is gone."""
    repository = write_models(tmp_path_factory.mktemp("foreign"))
    with serve("--model-repository", repository) as child:
        yield child.ready()
        assert child.stop() == 0
        assert child.err == []


@pytest.fixture(scope="session")
def http_address(server: Child) -> str:
    """Host and port of HTTP."""
    return f"127.0.0.1:{server.port('HTTPService')}"


@pytest.fixture(scope="session")
def grpc_address(server: Child) -> str:
    """Host and port of gRPC."""
    return f"127.0.0.1:{server.port('GRPCInferenceService')}"
