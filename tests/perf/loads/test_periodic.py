"""A concurrency that grows by the responses of streams, against a decoupled model of tpx itself."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.perf.clients.running import level
from tests.perf.loads.streams import FakeStream, periodic
from tests.serving.frontends.streams import write_streaming_models
from tests.serving.live import Live, serving
from tpx.argv import from_argv
from tpx.errors import UsageError
from tpx.perf.options import SessionSpec
from tpx.perf.results import LevelResult, Verdict

FOUR = ("--shape", "IN:4", "--shape", "DELAY:4", "--input-data", "zero")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_streaming_models(repository)
    with serving(repository) as server:
        yield server


def grown(live: Live, directory: Path, *words: str) -> LevelResult:
    url = f"127.0.0.1:{live.ports['GRPCInferenceService']}"
    export = ("--profile-export-file", str(directory / "profile.json"))
    return level("-i", "grpc", "-u", url, "--streaming", "-m", "repeat", *FOUR, *export, *words)


@pytest.mark.parametrize("text", ["1:5:2", "3:7:4", "2:2", "4:10:3"])
def test_concurrency_grows_to_its_end_and_every_request_is_sent_once(
    live: Live, tmp_path: Path, text: str
) -> None:
    result = grown(live, tmp_path, "--periodic-concurrency-range", text, "--request-period", "2")
    end = int(text.split(":")[1])
    assert (result.verdict, result.requests, result.failed) == (Verdict.OK, end, 0)
    assert (result.level.mode, result.level.value) == ("periodic_concurrency", end)
    assert result.streaming is not None
    assert result.streaming.responses == 4 * end


def test_a_stream_that_ends_before_its_period_is_a_failure_and_the_rest_goes_on(
    live: Live, tmp_path: Path
) -> None:
    result = grown(live, tmp_path, "--periodic-concurrency-range", "1:3", "--request-period", "9")
    (error,) = result.errors
    assert (error.code, error.count) == ("incomplete", 3)
    assert error.message == "the stream ended after 4 responses: --request-period wants more"


def test_the_newest_requests_wait_for_each_other() -> None:
    """Of a step of three, all have to reach the period before the next three are sent."""
    stream = FakeStream()
    load = periodic(stream, start=2, end=5, step=3, period=2)
    load.start()
    assert len(stream.open) == 2
    for _ in range(3):
        stream.arrive(0)
    assert len(stream.open) == 2
    stream.arrive(1)
    assert len(stream.open) == 2
    stream.arrive(1)
    assert len(stream.open) == 5
    for number in range(5):
        stream.end(number)
    rows = load.records.since(0)
    assert np.all(rows["responses"] == [3, 2, 0, 0, 0])
    assert load.failed == 3


def test_it_is_for_streams_of_grpc() -> None:
    with pytest.raises(UsageError, match="requires bi-directional gRPC streaming"):
        from_argv(SessionSpec, ["-m", "net", "--periodic-concurrency-range", "1:3"])
