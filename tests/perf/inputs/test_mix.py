"""Several models at once, by weight, against tpx itself."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.frontends.streams import write_streaming_models
from tests.serving.live import Live, serving
from tpx.argv import from_argv
from tpx.errors import UsageError
from tpx.perf.inputs.feed import MixedFeed, RoundRobin
from tpx.perf.levels import Level, ModelShare
from tpx.perf.loops import event_loop
from tpx.perf.options import SessionSpec
from tpx.perf.records import MODEL_SHIFT
from tpx.perf.report.json import json_text
from tpx.perf.report.level_text import extra_lines
from tpx.perf.report.model import Report
from tpx.perf.run import run


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_streaming_models(repository)
    (repository / "other").symlink_to(repository / "double")
    with serving(repository) as server:
        yield server


def ran(live: Live, protocol: str, *words: str) -> Report:
    port = live.ports["GRPCInferenceService" if protocol == "grpc" else "HTTPService"]
    config = from_argv(SessionSpec, ["--assume-shapes", "-i", protocol, "-u", f"127.0.0.1:{port}", *words])
    with asyncio.Runner(loop_factory=event_loop) as runner:
        return runner.run(run(config))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_each_model_has_its_weights_part_and_figures_of_its_own(live: Live, protocol: str) -> None:
    report = ran(
        live, protocol, "--models", "double:3,other", "--request-count", "400", "--concurrency-range", "4"
    )
    (level,) = report.levels
    double, other = level.members
    assert (double.model, other.model, level.requests, level.failed) == ("double", "other", 400, 0)
    assert double.requests + other.requests == 400
    assert double.requests == pytest.approx(300, abs=40)
    assert double.throughput_infer_per_s + other.throughput_infer_per_s == pytest.approx(
        level.throughput_infer_per_s
    )
    for member in level.members:
        assert member.latency is not None
        assert member.server is not None
        assert member.server.success_count == member.requests
    assert level.server is not None
    assert level.server.success_count == 400
    document = json.loads(json_text(report, []))
    assert [m["model"] for m in document["levels"][0]["models"]] == ["double", "other"]
    assert sum("Model other" in line for line in extra_lines(level)) == 1


def drawn(seed: int, level: Level, count: int = 4000) -> list[int]:
    feed = MixedFeed([RoundRobin(("a", "b")), RoundRobin(("c",))], [3, 1], seed)
    feed.begin(level)
    sources = [feed.source(0), feed.source(1)]
    steps = []
    for i in range(count):
        source = sources[i % 2]
        request = source.next()
        steps.append(source.step)
        number, step = source.step >> MODEL_SHIFT, source.step & ((1 << MODEL_SHIFT) - 1)
        assert request == [("a", "b"), ("c",)][number][step]
    return steps


def test_the_draw_follows_seed_and_level_and_the_weights() -> None:
    one, two = Level("concurrency", 1), Level("concurrency", 2)
    steps = drawn(7, one)
    assert steps == drawn(7, one)
    assert steps != drawn(8, one)
    assert steps != drawn(7, two)
    assert sum(step >> MODEL_SHIFT for step in steps) == pytest.approx(1000, abs=120)


def test_models_and_weights_are_read() -> None:
    config = from_argv(SessionSpec, ["--models", "a:3, b,c:0.5"])
    assert config.target.models == (ModelShare("a", 3), ModelShare("b", 1), ModelShare("c", 0.5))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            "--models a:0",
            "Failed to parse --models. The value 'a:0' does not match <name:weight> with a weight > 0.",
        ),
        (
            "--models a,",
            "Failed to parse --models. The value '' does not match <name:weight> with a weight > 0.",
        ),
        ("--models a,a:2", "Failed to parse --models. A model is named twice."),
        ("--models a,b -m c", "--models names the models: leave out -m and -x"),
    ],
)
def test_what_is_no_mix_is_refused(words: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_argv(SessionSpec, words.split(" "))
    assert caught.value.message == text


def test_the_export_of_a_mix_has_the_inputs_of_every_model(live: Live, tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    words = ["--request-count", "40", "--profile-export-file", str(file), "--concurrency-range", "2"]
    report = ran(live, "http", "--models", "double,words", *words)
    (experiment,) = json.loads(file.read_text())["experiments"]
    given = [request["request_inputs"]["x"] for request in experiment["requests"]]
    assert sum(isinstance(value, str) for value in given) == report.levels[0].members[1].requests > 0
