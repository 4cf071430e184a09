"""Streams and sequences of several workers, against a server that knows what the answers have to be."""

import asyncio
import json
import os
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.perf.clients.openai_server import Script, openai_server
from tests.perf.clients.running import level, workers
from tests.perf.inputs.test_live import at, batching, data_file, sums
from tests.perf.servers import Behaviour, http_server
from tests.serving.frontends.streams import write_streaming_models
from tests.serving.live import Live, serving
from tests.serving.onnx_files import accumulator, write_model
from tpx.argv import from_argv
from tpx.errors import MeasurementError
from tpx.perf.levels import Level
from tpx.perf.loops import event_loop
from tpx.perf.observer import LevelProgress, Observer
from tpx.perf.options import SessionSpec
from tpx.perf.report.model import Report
from tpx.perf.run import run

pytestmark = pytest.mark.slow

STREAMS = ((1, 2, 3, 4), (10,), (5, 6), (7, 8, 9))
FOUR = ("--shape", "IN:4", "--shape", "DELAY:4", "--input-data", "zero")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_streaming_models(repository)
    write_model(repository, "sums", accumulator(), batching("oldest { max_candidate_sequences: 16 }"))
    with serving(repository) as server:
        yield server


def counted(live: Live, model: str) -> int:
    """Requests that the server answered well since it began."""
    stats = live.get(f"/v2/models/{model}/stats").json
    return int(stats["model_stats"][0]["inference_stats"]["success"]["count"])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def runs(requests: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
    """The steps of each sequence, in the order in which they were sent."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for line in sorted(requests, key=lambda line: line["start_ns"]):
        found[line["sequence"]].append(line["step"])
    return dict(found)


@pytest.mark.parametrize(
    ("transport", "load"),
    [
        (("http",), ("--concurrency-range", "5")),
        (("grpc",), ("--request-rate-range", "190", "--num-of-sequences", "5")),
        (("grpc", "--streaming"), ("--concurrency-range", "5")),
        (("http", "--client", "library"), ("--concurrency-range", "5")),
    ],
    ids=["http-concurrency", "grpc-rate", "stream-concurrency", "httpx"],
)
def test_every_sum_of_every_sequence_of_three_workers_is_right(
    live: Live, tmp_path: Path, transport: Sequence[str], load: Sequence[str]
) -> None:
    data = data_file(tmp_path, sums(*STREAMS))
    out = tmp_path / "requests.jsonl"
    words = ("--input-data", data, "--request-count", "200", "--workers", "3", "--jsonl", str(out))
    before = counted(live, "sums")
    result = level(*at(live, transport, "sums"), *load, *words)
    assert (result.requests, result.failed) == (200, 0)
    assert result.server is not None
    assert result.server.success_count == 200
    requests = lines(out)
    assert len(requests) == 200
    sequences = runs(requests)
    whole = {(0, 1, 2, 3), (4,), (5, 6), (7, 8, 9)}
    cut_short = [steps for steps in sequences.values() if tuple(steps) not in whole]
    assert len(cut_short) <= 5
    assert all(any(steps == list(w[: len(steps)]) for w in whole) for steps in cut_short)
    assert counted(live, "sums") - before == 200 + len(cut_short)
    assert result.sequences == len(sequences) - len(cut_short)
    # each worker has every third id
    assert {number % 3 for number in sequences} == {0, 1, 2}


@pytest.mark.parametrize("transport", [("http",), ("grpc", "--streaming")], ids=" ".join)
def test_of_one_sequence_no_two_requests_are_in_flight_at_once(
    live: Live, tmp_path: Path, transport: Sequence[str]
) -> None:
    out = tmp_path / "requests.jsonl"
    load = ("--request-rate-range", "600", "--num-of-sequences", "4", "--serial-sequences")
    words = ("--request-count", "600", "--workers", "2", "--jsonl", str(out))
    result = level(*at(live, transport, "sums"), *load, *words)
    assert (result.requests, result.failed) == (600, 0)
    times: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for line in lines(out):
        times[line["sequence"]].append((line["start_ns"], line["end_ns"]))
    for spans in times.values():
        spans.sort()
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))
    # and no more sequences are open than were asked for
    begins = [(spans[0][0], 1) for spans in times.values()]
    borders = sorted([*begins, *((spans[-1][1], -1) for spans in times.values())])
    open_now, most = 0, 0
    for _, change in borders:
        open_now += change
        most = max(most, open_now)
    assert most <= 4


@pytest.mark.parametrize("load", [("--concurrency-range", "7"), ("--request-rate-range", "80")], ids=str)
def test_every_answer_of_a_decoupled_model_is_counted_once_with_its_time(
    live: Live, tmp_path: Path, load: Sequence[str]
) -> None:
    out = tmp_path / "requests.jsonl"
    words = (*FOUR, *load, "--request-count", "90", "--workers", "3", "--jsonl", str(out))
    result = level(*at(live, ("grpc", "--streaming"), "repeat"), *words)
    assert (result.requests, result.failed) == (90, 0)
    assert result.server is not None
    assert result.server.success_count == 90
    assert result.streaming is not None
    assert result.streaming.responses == 360
    assert (first := result.streaming.times("ttft")) is not None
    assert first.count == 90
    assert result.streaming.responses_per_s == pytest.approx(4 * result.throughput_infer_per_s, rel=0.01)
    for line in lines(out):
        arrived = line["responses_ns"]
        assert len(arrived) == 4
        assert arrived == sorted(arrived)
        assert (arrived[0], arrived[-1]) == (line["first_byte_ns"], line["end_ns"])


def test_time_windows_of_streams_hold_what_the_server_answered(live: Live) -> None:
    words = (*FOUR, "--concurrency-range", "4", "--workers", "2", "-p", "300")
    result = level(*at(live, ("grpc", "--streaming"), "repeat"), *words)
    assert result.failed == 0
    assert result.server is not None
    assert result.server.success_count == pytest.approx(result.requests, rel=0.1, abs=8)
    assert result.in_flight == pytest.approx(4, abs=1)
    assert result.streaming is not None
    assert result.streaming.responses == 4 * result.requests


def test_the_tokens_of_a_service_are_counted_in_all_workers() -> None:
    script = Script(tokens=5, first_s=0.002, gap_s=0.001)
    with openai_server(script) as url:
        words = "--service-kind openai --endpoint v1/completions --streaming -m net -u"
        result = level(
            *words.split(), url, "--request-count", "40", "--concurrency-range", "4", "--workers", "2"
        )
    assert (result.requests, result.failed) == (40, 0)
    assert result.streaming is not None
    assert (result.streaming.units, result.streaming.responses) == (2 * 200, 200)
    assert len(script.bodies) == 40


class Interrupting(Observer):
    """Sets the event once a level has had answers, as Ctrl-C does."""

    progress_interval_s = 0.1

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    def progress(self, progress: LevelProgress) -> None:
        if progress.throughput_infer_per_s:
            self._stop.set()


def still_open(live: Live, ids: range) -> list[int]:
    """Those of some sequences that the server goes on with."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    asked = [{"inputs": [tensor], "parameters": {"sequence_id": n, "sequence_end": True}} for n in ids]
    return [n for n, request in zip(ids, asked, strict=True) if live.infer("sums", request).status == 200]


def endless(live: Live, ids: range) -> tuple[str, ...]:
    """As many sequences as there are ids, over streams, in one long window."""
    words = ("--sequence-length", "1000000", "--sequence-id-range", f"{ids.start}:{ids.stop}", "-p", "40000")
    return (
        *at(live, ("grpc", "--streaming"), "sums"),
        *words,
        *("--concurrency-range", str(len(ids))),
    )


def test_an_interrupt_keeps_what_sequences_had_and_leaves_none_open(live: Live) -> None:
    ids = range(500, 506)

    async def scene() -> Report:
        stop = asyncio.Event()
        config = from_argv(SessionSpec, [*endless(live, ids), "--workers", "2"])
        return await run(config, observer=Interrupting(stop), stop=stop)

    with asyncio.Runner(loop_factory=event_loop) as runner:
        report = runner.run(scene())
    (result,) = report.levels
    assert report.interrupted
    assert (result.failed, result.sequences) == (0, 0)
    assert result.requests > 0
    assert still_open(live, ids) == []
    assert workers() == []


class Ending(Observer):
    """Sends a signal to one of the workers once the level of that number has had answers."""

    progress_interval_s = 0.1

    def __init__(self, number: signal.Signals, begun: int = 1) -> None:
        self._number = number
        self._left = begun

    def level_started(self, level: Level) -> None:
        self._left -= 1

    def progress(self, progress: LevelProgress) -> None:
        if self._left == 0 and progress.throughput_infer_per_s:
            self._left = -1
            os.kill(workers()[0], self._number)


def ran(observer: Observer, *words: str) -> Report:
    config = from_argv(SessionSpec, ["--workers", "2", *words])
    with asyncio.Runner(loop_factory=event_loop) as runner:
        return runner.run(run(config, observer=observer))


TOLD = r"worker \d of 2 of tpx perf ended unexpectedly \(exit code -9\)"


@pytest.mark.parametrize(
    "window",
    [("-p", "40000"), ("--measurement-mode", "count_windows", "--measurement-request-count", "100000000")],
    ids=["time", "count"],
)
def test_the_death_of_a_worker_is_told_at_once_however_long_the_window_is(window: Sequence[str]) -> None:
    with http_server(Behaviour()) as url, pytest.raises(MeasurementError, match=TOLD):
        ran(Ending(signal.SIGKILL), "-m", "net", "-u", url, "--concurrency-range", "2", *window)
    assert workers() == []


def test_when_a_worker_dies_the_others_end_their_sequences(live: Live) -> None:
    ids = range(600, 604)
    with pytest.raises(MeasurementError, match="ended unexpectedly"):
        ran(Ending(signal.SIGKILL), *endless(live, ids))
    # the first worker died with the even ones; the server has ended those of them that it was computing
    assert set(still_open(live, ids)) <= {600, 602}


def test_levels_before_the_death_of_a_worker_are_reported_with_the_error() -> None:
    with http_server(Behaviour()) as url:
        words = ("-m", "net", "-u", url, "--concurrency-range", "2:4", "-p", "200", "-s", "900", "-r", "3")
        report = ran(Ending(signal.SIGKILL, begun=2), *words)
    assert [result.level.value for result in report.levels] == [2]
    assert "ended unexpectedly (exit code -9)" in report.error


def test_a_worker_that_is_stopped_is_an_error_and_not_a_hang() -> None:
    slow = Behaviour(delay_s=lambda _: 0.05)
    with http_server(slow) as url, pytest.raises(MeasurementError, match="has not responded for 1"):
        ran(Ending(signal.SIGSTOP), "-m", "net", "-u", url, "--concurrency-range", "2", "-p", "40000")
    assert workers() == []
