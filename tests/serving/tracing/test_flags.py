"""Tracing on the command line."""

from pathlib import Path

import pytest

from tpx.errors import UsageError
from tpx.options import from_argv
from tpx.serving.options import ServeConfig
from tpx.serving.tracing.settings import TraceSetting


def setting(*words: str) -> TraceSetting:
    """What the server would start with."""
    return from_argv(ServeConfig, words).trace_setting


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_nothing_is_traced_unless_told() -> None:
    assert setting() == TraceSetting(trace_rate=1000, trace_count=-1)


def test_every_key_has_its_effect_and_levels_add_up() -> None:
    assert setting(
        "--trace-config", "triton,file=t.json", "--trace-config=triton,log-frequency=4",
        "--trace-config=level=TENSORS", "--trace-config=level=timestamps", "--trace-config=rate=3",
        "--trace-config=count=9", "--trace-config=mode=triton",
    ) == TraceSetting(
        trace_level=("TIMESTAMPS", "TENSORS"), trace_rate=3, trace_count=9, log_frequency=4,
        trace_file="t.json",
    )  # fmt: skip


def test_the_older_flags_say_the_same() -> None:
    assert setting(
        "--trace-file=t.json", "--trace-level=MAX", "--trace-level=TENSORS", "--trace-rate=3",
        "--trace-count=9", "--trace-log-frequency=4",
    ) == TraceSetting(
        trace_level=("TIMESTAMPS", "TENSORS"), trace_rate=3, trace_count=9, log_frequency=4,
        trace_file="t.json",
    )  # fmt: skip


def test_the_newer_flag_says_more_than_the_older_ones() -> None:
    told = setting("--trace-file=a", "--trace-rate=3", "--trace-config=rate=5", "--trace-level=TENSORS")
    assert (told.trace_file, told.trace_rate, told.trace_level) == ("a", 5, ("TENSORS",))


@pytest.mark.parametrize("word", ["OFF", "false"])
def test_off_switches_all_levels_off(word: str) -> None:
    words = ["--trace-config=level=TIMESTAMPS", f"--trace-config=level={word}", "--trace-level=TENSORS"]
    assert setting(*words).trace_level == ()


def test_a_file_name_may_have_commas_and_equals_signs() -> None:
    assert setting("--trace-config=triton,file=a,b=c.json").trace_file == "a,b=c.json"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("rate", "--trace-config option format is"),
        ("rate=", "--trace-config option format is"),
        (",rate=3", "--trace-config option format is"),
        ("rate=0", "expected at least 1"),
        ("rate=x", "expected an integer"),
        ("count=-2", "expected at least -1"),
        ("triton,log-frequency=-1", "expected at least 0"),
        ("level=LOUD", "invalid value for trace level option: LOUD"),
        ("jaeger,file=x", "invalid value for trace mode option: jaeger. Available options are"),
        ("mode=jaeger", "invalid value for trace mode option: jaeger. Available options are"),
        ("mode=opentelemetry", "this version of tpx writes trace files only"),
        ("opentelemetry,url=http://localhost:4318", "this version of tpx writes trace files only"),
        ("file=x", "unknown setting 'file=x'"),
        ("triton,rate=3", "unknown setting 'rate=3'"),
        ("speed=3", "unknown setting 'speed=3'"),
    ],
)
def test_what_cannot_be_is_refused(word: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        setting("--trace-config", word)
    assert f"Failed to parse --trace-config. Invalid value provided: {word} (" in raised.value.message
    assert message in raised.value.message


def test_tracing_into_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"tracing needs a file to write to: --trace-config triton,file=PATH"
    ):
        setting("--trace-config=level=TIMESTAMPS")
    with pytest.raises(UsageError, match="no directory 'nowhere'"):
        setting("--trace-config=triton,file=nowhere/t.json")
