"""Command lines of aiperf and genai-perf, word by word."""

import re

import pytest

from tpx.errors import UsageError
from tpx.perf.inputs.prompts import Length
from tpx.perf.options.aiperf import translate
from tpx.perf.options.words import read_words

CHAT = ["--service-kind=openai", "--endpoint=v1/chat/completions"]


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("profile --endpoint-type chat", CHAT),
        ("--endpoint-type=chat --custom-endpoint /x/chat", ["--service-kind=openai", "--endpoint=/x/chat"]),
        ("--endpoint /x/chat --endpoint-type chat", ["--endpoint", "/x/chat", "--service-kind=openai"]),
        ("--isl 512 --isl-stddev 64 --osl 9", ["--input-tokens=512,sd=64", "--output-tokens=9"]),
        ("--synthetic-input-tokens-mean=5 --output-tokens-mean 6", ["--input-tokens=5", "--output-tokens=6"]),
        ("--num-prompts 3 --prefix-prompt-length 4", ["--prompts=3", "--prefix-tokens=4"]),
        ("--concurrency 8 --random-seed 1", ["--concurrency", "8", "--seed=1"]),
        ("--streaming -m llm", ["--streaming", "-m", "llm"]),
        (
            "--input-file t.jsonl --custom-dataset-type mooncake_trace --fixed-schedule",
            ["--input-data=t.jsonl", "--fixed-schedule"],
        ),
        (
            "--request-rate 5 --arrival-pattern gamma --arrival-smoothness 0.5",
            ["--request-rate", "5", "--request-distribution=gamma", "--gamma-shape=0.5"],
        ),
        ("--goodput ttft<200ms", ["--goodput=ttft<200ms"]),
    ],
)
def test_its_names_become_ours(words: str, ours: list[str]) -> None:
    assert translate(words.split()) == ours


def test_bounds_of_goodput_are_milliseconds() -> None:
    words = ["--goodput", "time_to_first_token:200 inter_token_latency:40.5 request_latency:2000"]
    assert translate(words) == ["--goodput=ttft<200ms,itl<40.5ms,latency<2000ms"]


def test_a_whole_command_line_is_a_run() -> None:
    words = (
        "profile --model-names llm --url host:9000 --endpoint-type completions --streaming --concurrency 4"
    )
    config = read_words([*words.split(), "--isl", "100", "--osl", "20", "--osl-stddev", "2"]).config
    assert (config.target.model, config.address, config.service.endpoint) == (
        "llm",
        "host:9000",
        "v1/completions",
    )
    assert (config.prompts.input_tokens, config.prompts.output_tokens) == (Length(100), Length(20, 2.0))
    assert config.levels.start == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--isl", "--isl requires a value"),
        ("--isl-stddev 4", "requires their mean"),
        ("--endpoint-type chatt", "did you mean 'chat'"),
        ("--benchmark-duration 60", "tpx perf has no --benchmark-duration: a level lasts until it is stable"),
        ("--goodput time_to_first_tokn:3", "did you mean 'time_to_first_token'"),
    ],
)
def test_what_has_no_meaning_here_is_told(words: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        translate(words.split())
