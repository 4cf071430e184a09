"""Tracing on the command line."""

import os
from pathlib import Path

import pytest

from tpx.argv import from_argv
from tpx.errors import UsageError
from tpx.serving.options import ServeConfig
from tpx.serving.tracing.settings import SpanSettings, TraceSetting


def setting(*words: str) -> TraceSetting:
    """What the server would start with."""
    return from_argv(ServeConfig, words).tracing.setting


def config(*values: str) -> list[str]:
    return [f"--trace-config={value}" for value in values]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in list(os.environ):
        if variable.startswith("OTEL_"):
            monkeypatch.delenv(variable)


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
        ("rate=x", "expected an integer"),
        ("count=-2", "expected at least -1"),
        ("triton,log-frequency=-1", "expected at least 0"),
        ("level=LOUD", "invalid value for trace level option: LOUD"),
        ("jaeger,file=x", "invalid value for trace mode option: jaeger. Available options are"),
        ("mode=jaeger", "invalid value for trace mode option: jaeger. Available options are"),
        ("rate=-1", "expected at least 0"),
        ("opentelemetry,resource=me", "expected opentelemetry,resource=KEY=VALUE"),
        ("opentelemetry,resource==me", "expected opentelemetry,resource=KEY=VALUE"),
        ("opentelemetry,bsp_schedule_delay=0", "expected at least 1"),
        ("opentelemetry,file=x", "unknown setting 'file=x'"),
        ("triton,url=http://localhost", "unknown setting 'url=http://localhost'"),
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


def test_spans_have_tritons_defaults_and_need_no_file() -> None:
    told = setting(*config("mode=opentelemetry", "level=TIMESTAMPS", "rate=0"))
    assert told == TraceSetting(
        trace_level=("TIMESTAMPS",),
        trace_rate=0,
        trace_mode="opentelemetry",
        spans=SpanSettings(
            url="http://localhost:4318/v1/traces",
            bsp_max_queue_size=2048,
            bsp_schedule_delay=5000,
            bsp_max_export_batch_size=512,
        ),
    )
    assert not told.fault


def test_every_setting_of_spans_has_its_effect_and_resources_add_up() -> None:
    assert setting(
        *config(
            "mode=OpenTelemetry",
            "opentelemetry,url=https://collector:1/v1/traces?a=b,c",
            "opentelemetry,resource=service.name=me",
            "opentelemetry,resource=a=b=c",
            "opentelemetry,resource=service.name=you",
            "opentelemetry,bsp_max_queue_size=9",
            "opentelemetry,bsp_schedule_delay=8",
            "opentelemetry,bsp_max_export_batch_size=7",
        )
    ).spans == SpanSettings(
        url="https://collector:1/v1/traces?a=b,c",
        resource=(("service.name", "you"), ("a", "b=c")),
        bsp_max_queue_size=9,
        bsp_schedule_delay=8,
        bsp_max_export_batch_size=7,
    )


def test_the_environment_says_what_no_flag_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "70")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://other:2/")
    told = setting(*config("mode=opentelemetry", "opentelemetry,bsp_schedule_delay=80")).spans
    assert (told.url, told.bsp_max_queue_size, told.bsp_schedule_delay) == (
        "http://other:2/v1/traces",
        600,
        80,
    )
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:3/here")
    assert setting(*config("mode=opentelemetry")).spans.url == "http://traces:3/here"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["rate=0"], "--trace-config rate=0 needs mode=opentelemetry: expected at least 1"),
        (["opentelemetry,url=http://x"], "opentelemetry,url= has no effect: that needs mode=opentelemetry"),
        (["mode=opentelemetry", "triton,file=x"], "triton,file= has no effect: that needs mode=triton"),
        (["mode=opentelemetry", "level=TENSORS"], "mode opentelemetry has no level TENSORS"),
        (["mode=opentelemetry", "opentelemetry,url=localhost:4318"], "expected http://HOST:PORT/v1/traces"),
        (
            ["mode=opentelemetry", "opentelemetry,bsp_max_queue_size=100"],
            "bsp_max_export_batch_size=512 is more than bsp_max_queue_size=100",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(values: list[str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        setting(*config(*values))
    assert message in raised.value.message


def test_a_file_of_the_older_flag_is_no_place_for_spans() -> None:
    with pytest.raises(UsageError, match="--trace-file has no effect: that needs mode=triton"):
        setting("--trace-file=x", *config("mode=opentelemetry"))


def test_a_number_of_the_environment_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "soon")
    with pytest.raises(UsageError, match="OTEL_BSP_SCHEDULE_DELAY=soon of the environment: expected an int"):
        setting(*config("mode=opentelemetry"))
