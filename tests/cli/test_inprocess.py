"""`tpx perf --service-kind inprocess`: the engine measured without a network."""

import asyncio
from pathlib import Path

import pytest

from tests.serving.frontends.streams import write_streaming_models
from tests.serving.onnx_files import busy, write_model
from tpx.argv import from_argv
from tpx.cli.perf import IN_PROCESS
from tpx.errors import MeasurementError, TpxError, UsageError
from tpx.perf.loops import event_loop
from tpx.perf.options import SessionSpec
from tpx.perf.report.model import Report
from tpx.perf.run import run


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("models")
    write_streaming_models(path)
    (path / "broken" / "1").mkdir(parents=True)
    (path / "broken" / "config.pbtxt").write_text('backend: "onnxruntime"')
    return path


def ran(repository: Path, *words: str, kind: str = "inprocess") -> Report:
    target = ("--service-kind", kind, "--model-repository", str(repository))
    config = from_argv(SessionSpec, ["--assume-shapes", "-p", "60", "-s", "900", "-r", "4", *target, *words])
    with asyncio.Runner(loop_factory=event_loop) as runner:
        return runner.run(run(config, in_process=IN_PROCESS))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["inprocess", "triton_c_api", "local"])
def test_a_model_is_measured_with_its_statistics(repository: Path, kind: str) -> None:
    (level,) = ran(repository, "-m", "double", "--request-count", "40", kind=kind).levels
    assert (level.requests, level.failed) == (40, 0)
    assert level.server is not None
    assert (level.server.inference_count, level.server.model) == (40, "double")


@pytest.mark.slow
def test_a_model_that_computes_on_the_event_loop_answers_in_turns(repository: Path) -> None:
    (level,) = ran(repository, "-m", "double", "--request-count", "5000").levels
    assert (level.requests, level.failed) == (5000, 0)


@pytest.mark.slow
def test_a_decoupled_model_has_all_its_responses_counted(repository: Path) -> None:
    words = ("--streaming", "--input-data", "zero", "--shape", "IN:3", "--shape", "DELAY:3")
    (level,) = ran(repository, "-m", "repeat", *words, "--request-count", "20").levels
    assert level.streaming is not None
    assert (level.requests, level.streaming.responses) == (20, 60)


@pytest.mark.slow
def test_a_decoupled_model_needs_streaming(repository: Path) -> None:
    with pytest.raises(MeasurementError, match="Decoupled models must be run"):
        ran(repository, "-m", "repeat")


@pytest.mark.slow
def test_what_the_engine_refuses_is_counted_in_its_words(tmp_path: Path) -> None:
    policy = "max_batch_size: 8 dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    write_model(tmp_path, "net", busy(), policy)
    words = ("--request-count", "200", "--concurrency-range", "30")
    (level,) = ran(tmp_path, "-m", "net", *words).levels
    (error,) = level.errors
    assert (error.code, error.count) == ("Unavailable", level.failed)
    assert "maximum queue size" in error.message


def test_a_request_that_takes_too_long_is_given_up(repository: Path) -> None:
    words = ("-m", "patient", "--timeout", "0.03", "--request-count", "2")
    (level,) = ran(repository, *words).levels
    assert [(e.code, e.count) for e in level.errors] == [("timeout", 2)]


@pytest.mark.slow
def test_a_model_that_did_not_load_says_why(repository: Path) -> None:
    with pytest.raises(
        TpxError, match=r"'broken' .*; the server has it, but it is UNAVAILABLE: .*model\.onnx"
    ):
        ran(repository, "-m", "broken")


@pytest.mark.slow
def test_a_name_that_is_mistyped_is_answered_with_those_that_there_are(repository: Path) -> None:
    with pytest.raises(MeasurementError, match=r"did you mean 'double'\?\); the server has: .*\bdouble\b"):
        ran(repository, "-m", "dubble")


def test_a_rate_is_kept_in_process(tmp_path: Path) -> None:
    write_model(tmp_path, "net")
    (level,) = ran(tmp_path, "-m", "net", "--request-rate-range", "500").levels
    # several thousand without; a busy machine has fewer, or more for a moment when it catches up
    assert 0 < level.throughput_infer_per_s < 1000


def test_headers_have_nowhere_to_go(repository: Path) -> None:
    with pytest.raises(UsageError, match="requests have no headers"):
        ran(repository, "-m", "double", "-H", "A: b")


def test_the_load_generator_alone_has_no_engine(repository: Path) -> None:
    words = ["-m", "double", "--service-kind", "local", "--model-repository", str(repository)]
    with pytest.raises(UsageError, match="on the command line only"):
        asyncio.run(run(from_argv(SessionSpec, words)))
