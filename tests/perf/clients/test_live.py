"""The clients against tpx itself: formats, compression, parameters, trace settings, composing models."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.perf.clients.running import level, ran
from tests.serving.live import Live, serving, write_models
from tpx.errors import MeasurementError
from tpx.serving.tracing.flags import trace_flag


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_models(repository)
    traces = trace_flag(f"triton,file={repository.parent / 'traces.json'}")
    with serving(repository, trace_config=(traces,)) as server:
        yield server


def at(live: Live, protocol: str) -> tuple[str, ...]:
    service = "HTTPService" if protocol == "http" else "GRPCInferenceService"
    return ("-i", protocol, "-u", f"127.0.0.1:{live.ports[service]}")


@pytest.mark.parametrize("inputs", ["binary", "JSON"])
@pytest.mark.parametrize("outputs", ["binary", "json"])
@pytest.mark.parametrize("model", ["double", "words"])
def test_every_pair_of_formats_is_understood(live: Live, inputs: str, outputs: str, model: str) -> None:
    formats = ("--input-tensor-format", inputs, "--output-tensor-format", outputs)
    result = level(*at(live, "http"), "-m", model, *formats, "--request-count", "5")
    assert (result.requests, result.failed) == (5, 0)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_messages_are_understood(live: Live, algorithm: str) -> None:
    words = ("--grpc-compression-algorithm", algorithm, "--request-count", "5")
    result = level(*at(live, "grpc"), "-m", "double", *words)
    assert (result.requests, result.failed) == (5, 0)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_server_is_told_what_to_trace(live: Live, protocol: str) -> None:
    rate = {"http": "700", "grpc": "800"}[protocol]
    words = (
        "--trace-rate",
        rate,
        "--log-frequency",
        "9",
        "--trace-count",
        "0",
        "--trace-level",
        "timestamps",
    )
    ran(*at(live, protocol), "-m", "double", *words, "--request-count", "2")
    settings = live.get("/v2/trace/setting").json
    assert settings["trace_rate"] == rate
    assert (settings["log_frequency"], settings["trace_count"]) == ("9", "0")
    assert settings["trace_level"] == ["TIMESTAMPS"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_connections_of_a_sweep_stay_balanced(live: Live, protocol: str) -> None:
    report = ran(
        *at(live, protocol), "-m", "double", "--concurrency-range", "3,40,1", "--request-count", "80"
    )
    assert [(r.requests, r.failed) for r in report.levels] == [(80, 0)] * 3


def test_a_refusal_of_trace_settings_is_told(live: Live) -> None:
    with pytest.raises(MeasurementError, match="failed to set trace settings"):
        ran(*at(live, "http"), "-m", "double", "--trace-rate", str(2**70))
