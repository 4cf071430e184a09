"""The command line of `tpx perf`: perf_analyzer's spellings, defaults and messages."""

from pathlib import Path

import pytest

from tests.perf.parsing import message, parse
from tpx.argv import from_argv
from tpx.errors import UsageError
from tpx.perf.levels import LevelRange
from tpx.perf.options import SessionSpec
from tpx.perf.settings import ErrorBudget, Header, Shape


def test_defaults_are_those_of_perf_analyzer() -> None:
    config = parse()
    rules = config.level_settings
    assert (rules.interval_ms, rules.stability, rules.max_windows, rules.rule) == (5000, 0.1, 10, "pa")
    windows = config.windows
    assert (config.inputs.batch_size, windows.measurement_mode, windows.measurement_request_count) == (
        1,
        "time_windows",
        50,
    )
    assert (config.inputs.string_length, config.inputs.input_data, config.windows.latency_threshold) == (
        128,
        (),
        0,
    )
    assert config.address == "localhost:8000"
    assert parse("-i", "gRPC").address == "localhost:8001"


def test_short_and_long_spellings_agree() -> None:
    short = ("-x", "3", "-i", "grpc", "-u", "h:1", "-b", "4", "-p", "100", "-s", "20", "-r", "5", "-l", "9")
    words = ("--model-version", "3", "--protocol", "grpc", "--url", "h:1", "--batch-size", "4")
    rules = ("--measurement-interval", "100", "--stability-percentage", "20", "--max-trials", "5")
    more = ("--latency-threshold", "9", "--verbose", "--csv", "a.csv", "--header", "A:b")
    parsed = parse(*short, "-v", "-f", "a.csv", "-H", "A:b")
    assert parsed == parse(*words, *rules, *more)
    assert parsed.output.csv == Path("a.csv")


def test_a_run_becomes_the_rules_of_its_levels() -> None:
    settings = parse("-s", "25", "-p", "500", "--percentile", "99.9", "--timeout", "2").level_settings
    assert settings.stability == 0.25
    assert settings.window_ns == 600_000_000  # perf_analyzer's windows last 1.2 times the interval
    assert settings.percentile == 99.9
    assert settings.timeout_s == 2
    assert parse("--percentile", "-1").level_settings.percentile is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", LevelRange(start=4)),
        ("1:8", LevelRange(start=1, end=8)),
        ("2:8:2", LevelRange(start=2, end=8, step=2)),
        (":8", LevelRange(start=1, end=8)),
        ("4::2", LevelRange(start=4, step=2)),
        ("1:64:x2", LevelRange(start=1, end=64, factor=2)),
        ("8,1,4", LevelRange(listed=(8, 1, 4))),
    ],
)
def test_a_concurrency_range_is_linear_geometric_or_a_list(text: str, expected: LevelRange) -> None:
    assert parse("--concurrency-range", text).load.concurrency_range == expected


def test_repeatable_options_gather() -> None:
    config = parse("--shape", "x:3,224,224", "--shape", "a:b:1", "-H", "A: b:c", "-H", "D:")
    assert config.inputs.shape == (Shape("x", (3, 224, 224)), Shape("a:b", (1,)))
    assert config.target.header == (Header("A", " b:c"), Header("D", ""))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("-s nan", "Failed to parse --stability-percentage (-s). The value must be >= 0.0."),
        (
            "--percentile 0",
            "Failed to parse --percentile. The value must be -1 for not reporting or in range (0, 100).",
        ),
        (
            "--input-data data.json",
            "Failed to parse --input-data. Unsupported type provided: 'data.json'. "
            "The available options are 'zero', 'random', path to a directory, or a json file; "
            "there is no such file or directory.",
        ),
        ("--shape x:0", "Failed to parse --shape. The dimensions of input tensor must be > 0."),
        ("--shape x:a", "Failed to parse --shape. Invalid value provided: x:a"),
        ("--request-count -1", "Failed to parse --request-count. The value must be > 0."),
        ("--request-count 2 --concurrency-range 4", "--request-count can not be less than concurrency"),
        ("--concurrency-range 0", "The start of the search range must be > 0"),
        ("--concurrency-range 1,0", "The start of the search range must be > 0"),
        (
            "--concurrency-range 1:2:3:4",
            "Failed to parse --concurrency-range. The value does not match <start:end:step>.",
        ),
        ("--concurrency-range 1:x", "Failed to parse --concurrency-range. Invalid value provided: 1:x"),
        ("--concurrency-range 1,x", "Failed to parse --concurrency-range. Invalid value provided: 1,x"),
        (
            "--concurrency-range 1:0",
            "The end of the search range and the latency limit can not be both 0 (or 0.0) simultaneously",
        ),
        ("--concurrency-range 8:4", "Failed to parse --concurrency-range. The <start> must be <= <end>."),
        (
            "--concurrency-range 1:8:0",
            "Failed to parse --concurrency-range. The <step> must be > 0, or a factor > 1 such as x2.",
        ),
        (
            "--concurrency-range 1:8:x1",
            "Failed to parse --concurrency-range. The <step> must be > 0, or a factor > 1 such as x2.",
        ),
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
        ("--max-errors=-1", "Failed to parse --max-errors. The value must be >= 0."),
        (
            "--timeout 1e300",
            "Failed to parse --timeout. The value must be >= 0 seconds, and no more than 1e9.",
        ),
    ],
)
def test_a_bad_value_gets_its_message(words: str, text: str) -> None:
    assert message(*words.split(" ")) == text


def test_a_header_cannot_smuggle_another() -> None:
    assert "line break" in message("-H", "A: b\r\nC: d")


def test_a_missing_model_is_named() -> None:
    with pytest.raises(UsageError, match=r"Failed to parse -m \(model name\). The value must be specified."):
        from_argv(SessionSpec, [])


def test_an_unambiguous_prefix_is_enough() -> None:
    assert parse("--concurrency", "4").load.concurrency_range.start == 4


def test_budgets_are_counts_or_shares() -> None:
    assert parse("--max-errors", "5").windows.max_errors == ErrorBudget(count=5)
    assert parse("--max-errors", "0.5%").windows.max_errors == ErrorBudget(percent=0.5)
    assert ErrorBudget(count=0).exceeded(failed=1, sent=10_000)
    assert not ErrorBudget(percent=1).exceeded(failed=100, sent=10_000)
    assert ErrorBudget(percent=1).exceeded(failed=101, sent=10_000)
    assert not ErrorBudget().exceeded(failed=10, sent=10)
    assert ErrorBudget(count=5).after(3) == ErrorBudget(count=2)


@pytest.mark.parametrize("text", ["4", "1:8:2", "1:64:x2", "8,1,4", "1:0:1"])
def test_a_range_reads_as_it_was_written(text: str) -> None:
    assert str(parse("--concurrency-range", text, "-l", "5").load.concurrency_range) == text
