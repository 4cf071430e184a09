"""Sequences over each transport against tpx itself, which refuses a request without its start."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.perf.clients.running import level
from tests.serving.live import Live, serving
from tests.serving.onnx_files import doubling, write_model


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository: Path = tmp_path_factory.mktemp("models")
    config = "max_batch_size: 8 sequence_batching { max_sequence_idle_microseconds: 60000000 }"
    write_model(repository, "sums", doubling("batch", "n"), config)
    with serving(repository) as server:
        yield server


@pytest.mark.parametrize(
    ("protocol", "further"),
    [
        ("http", ()),
        ("http", ("--input-tensor-format", "json")),
        ("grpc", ()),
        ("grpc", ("--grpc-compression-algorithm", "gzip")),
        ("grpc", ("--streaming",)),
        ("grpc", ("--streaming", "--grpc-compression-algorithm", "deflate")),
        ("http", ("--client", "library")),
        ("grpc", ("--client", "library", "--grpc-compression-algorithm", "gzip")),
        ("grpc", ("--client", "library", "--streaming", "--grpc-compression-algorithm", "deflate")),
    ],
)
@pytest.mark.parametrize("load", [("--concurrency-range", "3"), ("--request-rate-range", "60")])
def test_every_sequence_begins_goes_on_and_ends(
    live: Live, protocol: str, further: tuple[str, ...], load: tuple[str, ...]
) -> None:
    service = "HTTPService" if protocol == "http" else "GRPCInferenceService"
    target = ("-m", "sums", "-i", protocol, "-u", f"127.0.0.1:{live.ports[service]}")
    ids = ("--sequence-length", "5", "--sequence-id-range", "1000:9000")
    result = level(*target, *further, *load, *ids, "--request-count", "60")
    assert (result.requests, result.failed, result.errors) == (60, 0, ())
