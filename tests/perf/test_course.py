"""Warming up by time, and messages for options that do not go together."""

import asyncio

import pytest

from tests.perf.servers import Behaviour, http_server
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


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--warmup-seconds -1", "Failed to parse --warmup-seconds. The value must be >= 0."),
        ("--warmup-seconds nan", "Failed to parse --warmup-seconds. The value must be >= 0."),
        (
            "--warmup-seconds 1 --warmup-request-count 2",
            "--warmup-seconds and --warmup-request-count can not both end the warm-up",
        ),
        (
            "--warmup-seconds 1 --fixed-schedule --input-data README.md",
            "--warmup-seconds needs a continuous load: fixed schedule is sent once",
        ),
        (
            "-i grpc --streaming --periodic-concurrency-range 1:4",
            "Must provide --profile-export-file when using the --periodic-concurrency-range option.",
        ),
    ],
)
def test_a_bad_value_gets_its_message(words: str, text: str) -> None:
    assert message(*words.split()) == text
