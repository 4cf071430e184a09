"""What happens around the levels: warming up and cooling down by time, and labels on the results."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from tests.perf.servers import Behaviour, http_server
from tpx.cli.perf import main
from tpx.errors import UsageError
from tpx.options import from_argv
from tpx.perf.loops import event_loop
from tpx.perf.options import SessionSpec
from tpx.perf.run import run


def parse(*words: str) -> SessionSpec:
    return from_argv(SessionSpec, ["-m", "net", *words])


def message(*words: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(*words)
    return caught.value.message


def test_the_load_of_a_warm_up_by_time_is_not_measured() -> None:
    behaviour = Behaviour(delay_s=lambda _: 0.01)
    with http_server(behaviour) as url, asyncio.Runner(loop_factory=event_loop) as runner:
        report = runner.run(run(parse("-u", url, "--warmup-seconds", "0.3", "--request-count", "5")))
    assert report.levels[0].requests == 5
    assert 5 < behaviour.infers - 5 <= 31


def test_there_is_no_load_between_levels_while_it_cools_down() -> None:
    words = ("--concurrency-range", "1,1", "--request-count", "2", "--cooldown-seconds", "0.3")
    begun = time.perf_counter()
    with http_server(Behaviour()) as url, asyncio.Runner(loop_factory=event_loop) as runner:
        report = runner.run(run(parse("-u", url, *words)))
    assert time.perf_counter() - begun >= 0.3
    first, second = report.levels
    gap_ns = second.windows[0].start_ns - first.windows[-1].end_ns
    assert gap_ns >= 290_000_000


def test_labels_go_into_the_json(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with http_server(Behaviour()) as url:
        words = ["-m", "net", "-u", url, "--request-count", "2", "--json", str(file)]
        assert main([*words, "--labels", "commit=1a=b", "--labels", "host=x"]) == 0
    assert json.loads(file.read_text())["labels"] == {"commit": "1a=b", "host": "x"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--warmup-seconds -1", "Failed to parse --warmup-seconds. The value must be >= 0."),
        ("--warmup-seconds nan", "Failed to parse --warmup-seconds. The value must be >= 0."),
        ("--cooldown-seconds -1", "Failed to parse --cooldown-seconds. The value must be >= 0."),
        (
            "--warmup-seconds 1 --warmup-request-count 2",
            "--warmup-seconds and --warmup-request-count can not both end the warm-up",
        ),
        (
            "--warmup-seconds 1 --fixed-schedule --input-data README.md",
            "--warmup-seconds needs a continuous load: fixed schedule is sent once",
        ),
        ("--labels a", "Failed to parse --labels. The value 'a' does not match <key=value>."),
        ("--labels a=1 --labels a=2", "--labels: a key is given more than once"),
        (
            "-i grpc --streaming --periodic-concurrency-range 1:4",
            "Must provide --profile-export-file when using the --periodic-concurrency-range option.",
        ),
    ],
)
def test_a_bad_value_gets_its_message(words: str, text: str) -> None:
    assert message(*words.split()) == text
