"""Trace settings: what clients may say, and what it changes."""

import pytest

from tpx.errors import InvalidRequest, TpxError, Unsupported
from tpx.serving.tracing.settings import Level, TraceSetting, TraceUpdate, parse_update

BOTH: tuple[Level, ...] = ("TIMESTAMPS", "TENSORS")
FIXED = TraceSetting().fixed


@pytest.mark.parametrize(
    ("given", "update"),
    [
        ({"trace_level": ["TENSORS", "TIMESTAMPS"]}, {"trace_level": BOTH}),
        ({"trace_level": ["OFF"]}, {"trace_level": ()}),
        ({"trace_level": []}, {}),
        ({"trace_rate": ["4294967295"]}, {"trace_rate": 4294967295}),
        ({"trace_count": ["-1"]}, {"trace_count": -1}),
        ({"log_frequency": ["0"], "trace_count": ["7"]}, {"log_frequency": 0, "trace_count": 7}),
        ({"trace_mode": ["triton"]}, {}),
        ({"trace_rate": None, "trace_count": ["3"]}, {"trace_rate": None, "trace_count": 3}),
    ],
)
def test_texts_become_values(given: dict[str, list[str] | None], update: TraceUpdate) -> None:
    assert parse_update(given, FIXED) == update


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"trace_file": ["x"]},
            Unsupported,
            "trace file location can not be updated through network protocol",
        ),
        (
            {"trace_file": None},
            Unsupported,
            "trace file location can not be updated through network protocol",
        ),
        (
            {"trace_mode": ["opentelemetry"]},
            Unsupported,
            "trace mode can not be updated through network protocol",
        ),
        (
            {"trace_level": ["OFF", "TENSORS"]},
            InvalidRequest,
            "Expect only one trace level 'OFF' is specified",
        ),
        (
            {"trace_level": ["MAX"]},
            InvalidRequest,
            "unknown trace level 'MAX', expected OFF, TIMESTAMPS or TENSORS",
        ),
        ({"trace_rate": ["1", "2"]}, InvalidRequest, "expect only 1 value for 'trace_rate'"),
        ({"trace_rate": []}, InvalidRequest, "expect only 1 value for 'trace_rate'"),
        ({"trace_rate": ["x"]}, InvalidRequest, "Unable to parse 'trace_rate', got: x"),
        ({"trace_rate": ["3x"]}, InvalidRequest, "Unable to parse 'trace_rate', got: 3x"),
        ({"trace_rate": ["٣"]}, InvalidRequest, "Unable to parse 'trace_rate', got: ٣"),
        ({"trace_rate": [""]}, InvalidRequest, "Unable to parse 'trace_rate', got: "),
        (
            {"trace_rate": ["-1"]},
            InvalidRequest,
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -1",
        ),
        (
            {"log_frequency": ["9" * 5000]},
            InvalidRequest,
            f"Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: {'9' * 5000}",
        ),
        (
            {"trace_count": ["2147483648"]},
            InvalidRequest,
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 2147483648",
        ),
        (
            {"trace_count": ["-2"]},
            InvalidRequest,
            "Unable to parse 'trace_count'. Expecting value >= -1, got: -2",
        ),
        (
            {"rate": ["1"]},
            InvalidRequest,
            "unknown trace setting 'rate', expected one of trace_level, trace_rate, trace_count, "
            "log_frequency",
        ),
    ],
)
def test_what_cannot_be_said_is_refused_in_tritons_words(
    given: dict[str, list[str] | None], error: type[TpxError], message: str
) -> None:
    with pytest.raises(error) as raised:
        parse_update(given, FIXED)
    assert raised.value.message == message


def test_a_setting_answers_in_tritons_order() -> None:
    setting = TraceSetting(trace_level=BOTH, trace_rate=3, trace_count=5, trace_file="t.json")
    assert list(setting.as_texts().items()) == [
        ("trace_level", ["TIMESTAMPS", "TENSORS"]),
        ("trace_rate", ["3"]),
        ("trace_count", ["5"]),
        ("log_frequency", ["0"]),
        ("trace_file", ["t.json"]),
        ("trace_mode", ["triton"]),
    ]
    assert TraceSetting().as_texts()["trace_level"] == ["OFF"]


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        (TraceSetting(trace_file="x"), "tracing is disabled"),
        (TraceSetting(trace_level=BOTH, trace_rate=0, trace_file="x"), "sample rate must be non-zero"),
        (TraceSetting(trace_level=BOTH), "trace file name is not given"),
        (TraceSetting(trace_level=BOTH, trace_file="x"), ""),
    ],
)
def test_a_setting_knows_why_it_traces_nothing(setting: TraceSetting, fault: str) -> None:
    assert setting.fault == fault
