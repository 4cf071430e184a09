"""The options of levels, pace and schedules: what each becomes, and what its bad values say."""

from pathlib import Path

import pytest

from tests.perf.parsing import message, parse
from tpx.perf.levels import LevelRange, PeriodicRange

RATES = "The rates must be from 1e-6 (one request in 11 days) to 1e9 (one a nanosecond)."


def test_without_a_kind_of_load_it_is_one_request_in_flight() -> None:
    assert parse().levels == LevelRange(start=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100", LevelRange(mode="request_rate", start=100)),
        ("0.5:2:0.5", LevelRange(mode="request_rate", start=0.5, end=2, step=0.5)),
        ("10:80:x2", LevelRange(mode="request_rate", start=10, end=80, factor=2)),
        ("10,20.5", LevelRange(mode="request_rate", listed=(10, 20.5))),
    ],
)
def test_a_rate_range_is_linear_geometric_or_a_list(text: str, expected: LevelRange) -> None:
    assert parse("--request-rate-range", text).levels == expected


def test_intervals_are_one_level_at_their_mean_rate(tmp_path: Path) -> None:
    file = tmp_path / "gaps"
    file.write_text("100000\n110000\n\n130000.5\n")
    config = parse("--request-intervals", str(file))
    assert config.level_settings.intervals is not None
    assert config.level_settings.intervals.gaps_ns == (100_000_000, 110_000_000, 130_000_500)
    assert config.levels.mode == "custom_intervals"
    assert config.levels.start == pytest.approx(3 / 0.3400005)


def test_a_binary_search_halves_whichever_range_there_is() -> None:
    search = ("--binary-search", "-l", "10")
    assert parse("--concurrency-range", "1:64:4", *search).levels.binary
    levels = parse("--request-rate-range", "1:64:4", *search).levels
    assert (levels.binary, levels.mode) == (True, "request_rate")


def test_a_periodic_range_takes_its_period_from_its_own_option() -> None:
    words = (
        "--periodic-concurrency-range 2:10:4 --request-period 3 -i grpc --streaming --profile-export-file p"
    )
    plan = parse(*words.split()).level_settings
    assert plan.periodic == PeriodicRange(start=2, end=10, step=4, period=3)


def test_pace_options_reach_the_plan() -> None:
    words = "--request-distribution GAMMA --gamma-shape 0.5 --on-late skip --max-connections 7 --seed 3"
    rate = ("--request-rate-range", "9", "--num-of-sequences", "9", "--serial-sequences")
    plan = parse(*words.split(), *rate).level_settings
    pace = plan.pace
    assert (pace.request_distribution, pace.gamma_shape) == ("gamma", 0.5)
    assert (pace.on_late, pace.max_connections, pace.serial_sequences) == ("skip", 7, True)
    assert (plan.seed, plan.sequences) == (3, 9)
    burst = parse("--request-distribution", "burst", "--burst-size", "8").level_settings.pace
    assert (burst.request_distribution, burst.burst_size) == ("burst", 8)


@pytest.mark.parametrize("words", ["--max-connections 7", "--on-late skip"])
def test_a_closed_loop_has_no_use_for_what_is_of_an_open_one(words: str) -> None:
    flag = words.split()[0]
    assert message(*words.split()) == (f"{flag} requires an open-loop load, such as --request-rate-range")


@pytest.mark.parametrize(("words", "workers"), [((), 0), (("--workers", "auto"), 0), (("--workers", "3"), 3)])
def test_workers_are_a_number_or_automatic(words: tuple[str, ...], workers: int) -> None:
    assert parse(*words).level_settings.pace.workers == workers
    assert parse(*words, "--max-threads", "2").level_settings.pace.max_threads == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--request-rate-range x", "--request-rate-range. Invalid value provided: x"),
        ("--request-rate-range inf", "--request-rate-range. Invalid value provided: inf"),
        ("--request-rate-range nan", "--request-rate-range. Invalid value provided: nan"),
        ("--request-rate-range 1e300", f"--request-rate-range. {RATES}"),
        ("--request-rate-range 5:2e9", f"--request-rate-range. {RATES}"),
        ("--request-rate-range 1,1e-300", f"--request-rate-range. {RATES}"),
        ("--request-rate-range 1:2:3:4", "--request-rate-range. The value does not match <start:end:step>."),
        ("--request-rate-range 2:1", "--request-rate-range. The <start> must be <= <end>."),
        ("--gamma-shape 0", "--gamma-shape. The value must be > 0."),
        ("--burst-size 0", "--burst-size. The value must be > 0."),
        ("--max-connections 0", "--max-connections. The value must be > 0."),
        ("--workers many", "--workers. The value must be 'auto' or a number from 1 to 256."),
        ("--on-late drop", "--on-late. Unsupported type provided: 'drop'. Choices are 'send' or 'skip'."),
        (
            "--periodic-concurrency-range 1",
            "--periodic-concurrency-range. Both <start> and <end> values must be provided.",
        ),
        (
            "--periodic-concurrency-range 1:9:0",
            "--periodic-concurrency-range. The <step> value must be > 0.",
        ),
        ("--periodic-concurrency-range 9:1", "--periodic-concurrency-range. The <start> must be <= <end>."),
        (
            "--periodic-concurrency-range 1:9:3",
            "--periodic-concurrency-range. "
            "The <step> value must be a factor of the range size (<end> - <start>).",
        ),
        (
            "--periodic-concurrency-range 1:2:3:4",
            "--periodic-concurrency-range. The value does not match <start:end:step>.",
        ),
    ],
)
def test_a_bad_value_gets_its_message(words: str, text: str) -> None:
    assert message(*words.split(" ")) == f"Failed to parse {text}"


@pytest.mark.parametrize(
    ("content", "reason"), [("", "is empty"), ("1\nx", "'x' is not a number"), ("0\n0", "> 0")]
)
def test_a_file_of_intervals_without_them_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "gaps"
    file.write_text(content)
    assert reason in message("--request-intervals", str(file))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            "--concurrency-range 1 --request-rate-range 5",
            "Cannot use both Concurrency and RequestRate inference load modes.",
        ),
        (
            "--request-rate-range 5 --fixed-schedule",
            "Cannot use both RequestRate and FixedSchedule inference load modes.",
        ),
        (
            "--request-count 5 --fixed-schedule",
            "Cannot specify `--request-count` when using `--fixed-schedule`.",
        ),
        (
            "--concurrency-range 2 --session-concurrency 2",
            "Session concurrency mode is only supported with OpenAI service kind.",
        ),
        (
            "--concurrency-range 2 --session-concurrency 2 --service-kind openai --endpoint x",
            "Cannot use both Concurrency and SessionConcurrency inference load modes.",
        ),
        (
            "--session-concurrency 0 --service-kind openai --endpoint x",
            "Failed to parse --session-concurrency. Session concurrency must be > 0.",
        ),
        (
            "--session-concurrency 2 --service-kind openai --endpoint x",
            "When using `--session-concurrency`, you must provide a dataset using `--input-data`.",
        ),
        ("--request-rate-range 50 --request-count 9", "--request-count can not be less than request rate"),
        ("--gamma-shape 2", "--gamma-shape requires --request-distribution gamma"),
        ("--burst-size 2", "--burst-size requires --request-distribution burst"),
        (
            "--binary-search --concurrency-range 1 -l 5",
            "The end of the range can not be 0 (or 0.0) for binary search mode.",
        ),
        (
            "--binary-search --concurrency-range 1:8",
            "The --latency-threshold cannot be 0 for binary search mode.",
        ),
        (
            "--request-rate-range 1:0",
            "The end of the search range and the latency limit can not be both 0 (or 0.0) simultaneously",
        ),
        (
            "--binary-search -l 5 --concurrency-range 1,2",
            "--binary-search needs a range <start:end:step>, not 1,2",
        ),
        (
            "--binary-search -l 5 --fixed-schedule",
            "--binary-search needs a range, and fixed_schedule is a single level",
        ),
    ],
)
def test_loads_that_do_not_go_together_are_refused(words: str, text: str) -> None:
    assert message(*words.split(" ")) == text
