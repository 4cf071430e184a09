"""Models that a Python model calls, reported beside it; and that model over all transports."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.perf.clients.running import level, ran
from tests.serving.backends.python.zoo import SAME, add
from tests.serving.live import Live, serving
from tpx.errors import MeasurementError

STEP = (
    'ensemble_scheduling { step [ { model_name: "double" '
    'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } ] }\n'
)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository: Path = tmp_path_factory.mktemp("models")
    add(repository, "bls")
    add(repository, "double")
    (repository / "doubling" / "1").mkdir(parents=True)
    (repository / "doubling" / "config.pbtxt").write_text(f'platform: "ensemble"\n{SAME}{STEP}', "utf-8")
    with serving(repository) as server:
        yield server


def at(live: Live, protocol: str) -> tuple[str, ...]:
    service = "HTTPService" if protocol == "http" else "GRPCInferenceService"
    calls = ("--request-parameter", "model:double:string", "--request-count", "6")
    return ("-m", "bls", "-i", protocol, "-u", f"127.0.0.1:{live.ports[service]}", *calls)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_models_that_it_calls_have_their_own_figures(live: Live, protocol: str) -> None:
    result = level(*at(live, protocol), "--bls-composing-models", "double:1, double")
    assert (result.requests, result.failed) == (6, 0)
    assert result.server is not None
    assert (result.server.model, result.server.success_count) == ("bls", 6)
    assert [(part.model, part.version, part.success_count) for part in result.server.composing] == [
        ("double", "1", 6),
        ("double", "1", 6),
    ]
    assert all(part.compute_infer_ns > 0 for part in result.server.composing)


def test_a_composing_model_that_is_not_there_is_named(live: Live) -> None:
    with pytest.raises(MeasurementError, match=r"failed to get model metadata:.*'nowhere'"):
        ran(*at(live, "http"), "--bls-composing-models", "nowhere")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_step_that_names_no_version_is_the_latest(live: Live, protocol: str) -> None:
    service = "HTTPService" if protocol == "http" else "GRPCInferenceService"
    url = f"127.0.0.1:{live.ports[service]}"
    result = level("-m", "doubling", "-i", protocol, "-u", url, "--request-count", "5")
    assert (result.requests, result.failed) == (5, 0)
    assert result.server is not None
    (part,) = result.server.composing
    assert (part.model, part.version, part.success_count) == ("double", "1", 5)


@pytest.mark.parametrize("streaming", [(), ("--streaming",)])
def test_a_python_model_takes_parameters_over_grpc(live: Live, streaming: tuple[str, ...]) -> None:
    result = level(*at(live, "grpc"), *streaming)
    assert (result.requests, result.failed) == (6, 0)
