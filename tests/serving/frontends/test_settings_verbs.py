"""Trace and log settings over both protocols, in Triton's words and types."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.live import Answer, Channel, Live, serving
from tests.serving.onnx_files import write_model
from tests.serving.transports import TRANSPORTS, Refused, Transport, connected
from tpx.protocol import messages
from tpx.serving.tracing.flags import trace_flag

LOGS = "/v2/logging"
TRACES = "/v2/trace/setting"
NET_TRACES = "/v2/models/net/trace/setting"

PLAIN_LOGS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server whose settings tests change; each leaves them as they were."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "net")
    file = tmp_path_factory.mktemp("traces") / "trace.json"
    flags = (f"triton,file={file}", "level=TIMESTAMPS", "rate=500")
    with serving(repository, trace_config=tuple(map(trace_flag, flags))) as running:
        yield running


@pytest.fixture
def calls(server: Live) -> Iterator[Channel]:
    with server.channel() as channel:
        yield channel


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest, server: Live) -> Iterator[Transport]:
    with connected(server, request.param) as client:
        yield client


@pytest.fixture(autouse=True)
def _as_it_was(server: Live) -> Iterator[None]:
    logs, traces = server.get(LOGS).body, server.get(TRACES).body
    yield
    nothing = dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"))
    assert post(server, NET_TRACES, nothing).status == 200
    assert post(server, TRACES, nothing).body == traces
    given = {name: value for name, value in json.loads(logs).items() if name != "log_file"}
    assert post(server, LOGS, given).body == logs


def post(server: Live, path: str, body: Any) -> Answer:
    return server.http("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())


def start_setting(server: Live) -> dict[str, Any]:
    """What the server was started with."""
    return {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "500",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": server.server.tracer.setting().trace_file,
        "trace_mode": "triton",
    }


def trace_change(model: str = "", **values: list[str]) -> bytes:
    """A TraceSettingRequest."""
    request = messages.TraceSettingRequest(model_name=model)
    for name, texts in values.items():
        request.settings[name].value.extend(texts)
    data: bytes = request.SerializeToString()
    return data


def log_change(**values: dict[str, Any]) -> bytes:
    """A LogSettingsRequest; each value is a SettingValue's field and what it holds."""
    request = messages.LogSettingsRequest()
    for name, value in values.items():
        request.settings[name].SetInParent()
        for kind, held in value.items():
            setattr(request.settings[name], kind, held)
    data: bytes = request.SerializeToString()
    return data


# trace settings


def test_trace_settings_have_tritons_members_in_its_order(server: Live) -> None:
    answer = server.get(TRACES)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert list(answer.json.items()) == list(start_setting(server).items())


def test_a_change_answers_with_all_settings(server: Live, transport: Transport) -> None:
    start = start_setting(server)
    assert transport.settings("TraceSetting") == transport.settings("TraceSetting", "net") == start
    change: dict[str, Any] = {"trace_level": ["TENSORS", "TIMESTAMPS"], "trace_rate": "7", "trace_count": "3"}
    told = {**start, **change, "trace_level": ["TIMESTAMPS", "TENSORS"]}
    assert transport.settings("TraceSetting", **change) == told
    assert transport.settings("TraceSetting") == told
    assert transport.settings("TraceSetting", trace_level=["OFF"])["trace_level"] == ["OFF"]
    cleared = transport.settings("TraceSetting", trace_level=None, trace_rate=None)
    assert cleared == {**start, "trace_count": "3"}


def test_a_model_has_its_own_until_it_is_cleared(transport: Transport) -> None:
    assert transport.settings("TraceSetting", "net", trace_rate="7")["trace_rate"] == "7"
    assert transport.settings("TraceSetting")["trace_rate"] == "500"
    assert transport.settings("TraceSetting", log_frequency="4")["log_frequency"] == "4"
    own = transport.settings("TraceSetting", "net")
    assert (own["log_frequency"], own["trace_rate"]) == ("4", "7")
    assert transport.settings("TraceSetting", "net", trace_rate=None)["trace_rate"] == "500"


def test_saying_nothing_changes_nothing(server: Live) -> None:
    assert post(server, TRACES, {}).json == start_setting(server)
    assert post(server, LOGS, {}).json == server.get(LOGS).json


FIXED = "trace file location can not be updated through network protocol"


@pytest.mark.parametrize(
    ("model", "change", "code", "message"),
    [
        ("", {"trace_file": "/etc/x"}, "UNIMPLEMENTED", FIXED),
        ("", {"trace_file": None}, "UNIMPLEMENTED", FIXED),
        ("net", {"trace_file": "/etc/x"}, "UNIMPLEMENTED", FIXED),
        (
            "",
            {"trace_level": ["OFF", "TENSORS"]},
            "INVALID_ARGUMENT",
            "Expect only one trace level 'OFF' is specified",
        ),
        ("", {"log_frequency": "x"}, "INVALID_ARGUMENT", "Unable to parse 'log_frequency', got: x"),
        (
            "",
            {"trace_count": "-2"},
            "INVALID_ARGUMENT",
            "Unable to parse 'trace_count'. Expecting value >= -1, got:",
        ),
        ("nope", {}, "INVALID_ARGUMENT", "Request for unknown model : nope"),
        ("nope", {"trace_rate": "1"}, "INVALID_ARGUMENT", "Request for unknown model : nope"),
    ],
)
def test_a_change_that_cannot_be_is_refused_in_tritons_words(
    server: Live, transport: Transport, model: str, change: dict[str, Any], code: str, message: str
) -> None:
    with pytest.raises(Refused) as caught:
        transport.settings("TraceSetting", model, **change)
    assert (caught.value.code, caught.value.message[: len(message)]) == (code, message)
    assert transport.settings("TraceSetting") == start_setting(server)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"trace_mode": "opentelemetry"}, 501, "trace mode can not be updated through network protocol"),
        ({"trace_level": ["X"]}, 400, "unknown trace level 'X', expected OFF, TIMESTAMPS or TENSORS"),
        ({"trace_level": "OFF"}, 400, "attempt to access JSON non-array as array"),
        ({"trace_level": [1]}, 400, "attempt to access JSON non-string as string"),
        ({"trace_rate": 1}, 400, "attempt to access JSON non-string as string"),
        ({"trace_rate": "x"}, 400, "Unable to parse 'trace_rate', got: x"),
        (
            {"trace_rate": "99999999999"},
            400,
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 99999999999",
        ),
        (
            {"trace_rate": "0"},
            400,
            "Attempting to set invalid trace setting :sample rate must be non-zero",
        ),
        (b"", 400, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"[1]", 400, "the request body must be a JSON object"),
        (b'"\xff"', 400, "failed to parse the request JSON buffer: "),
        (b'{"trace_rate":' + b"[" * 5000, 400, "failed to parse the request JSON buffer: "),
    ],
)
@pytest.mark.parametrize("path", [TRACES, NET_TRACES])
def test_json_that_cannot_be_a_change_is_refused_and_changes_nothing(
    server: Live, path: str, body: Any, status: int, message: str
) -> None:
    answer = post(server, path, body)
    assert (answer.status, answer.error[: len(message)]) == (status, message)
    assert server.get(path).json == start_setting(server)


@pytest.mark.parametrize("name", ["nope", "..", "%6eet2", "a%0Ab"])
def test_only_models_that_serve_have_settings(server: Live, name: str) -> None:
    path = f"/v2/models/{name}/trace/setting"
    for answer in (server.get(path), post(server, path, {})):
        assert answer.status == 400
        assert answer.error.startswith("Request for unknown model : ")


def test_a_setting_belongs_to_no_version_and_takes_no_other_method(server: Live) -> None:
    assert server.get("/v2/models/net/versions/1/trace/setting").status == 404
    for path in (TRACES, NET_TRACES, LOGS):
        assert server.http("PUT", path, b"{}").status == 405


def test_a_setting_has_one_value(calls: Channel) -> None:
    two = trace_change(trace_rate=["1", "2"])
    assert calls.error("TraceSetting", two) == ("INVALID_ARGUMENT", "expect only 1 value for 'trace_rate'")


# log settings


def test_log_settings_have_tritons_members_types_and_order(server: Live, transport: Transport) -> None:
    assert server.get(LOGS).body == json.dumps(PLAIN_LOGS, separators=(",", ":")).encode()
    answer = transport.settings("LogSettings")
    assert answer == PLAIN_LOGS
    assert type(answer["log_info"]) is bool


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(TRANSPORTS)))
def test_both_protocols_change_the_same_log(server: Live, first: str, second: str) -> None:
    change: dict[str, Any] = {"log_info": False, "log_verbose_level": 3, "log_format": "ISO8601"}
    with connected(server, first) as one, connected(server, second) as other:
        assert one.settings("LogSettings", **change) == {**PLAIN_LOGS, **change}
        assert other.settings("LogSettings") == {**PLAIN_LOGS, **change}
        restored = other.settings("LogSettings", log_info=True, log_verbose_level=0)
        assert restored == {**PLAIN_LOGS, "log_format": "ISO8601"} == one.settings("LogSettings")
    assert server.server.logs.settings.log_format == "ISO8601"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"log_file": "/etc/x"}, 501, "log file location can not be updated through network protocol"),
        ({"log_info": "x"}, 400, "attempt to access JSON non-boolean as boolean"),
        ({"log_warning": 1}, 400, "attempt to access JSON non-boolean as boolean"),
        ({"log_verbose_level": "1"}, 400, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ({"log_verbose_level": -1}, 400, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ({"log_verbose_level": 1.5}, 400, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ({"log_verbose_level": True}, 400, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        (
            {"log_verbose_level": 1 << 32},
            400,
            "'log_verbose_level' must be at most 4294967295, got 4294967296",
        ),
        ({"log_format": 1}, 400, "attempt to access JSON non-string as string"),
        ({"log_format": "x"}, 503, "invalid argument for --log_format, got: x"),
        ({"log_level": 1}, 400, "unknown log setting 'log_level', expected one of log_file, log_info"),
        ({"log_info": False, "log_format": "x"}, 503, "invalid argument for --log_format, got: x"),
        (b"", 400, "failed to parse the request JSON buffer: The document is empty. at 0"),
    ],
)
def test_a_log_cannot_be_changed_to_what_it_cannot_be(
    server: Live, body: Any, status: int, message: str
) -> None:
    answer = post(server, LOGS, body)
    assert (answer.status, answer.error[: len(message)]) == (status, message)
    assert server.get(LOGS).json == PLAIN_LOGS


def test_null_leaves_a_log_setting_as_it_is(server: Live) -> None:
    assert post(server, LOGS, dict.fromkeys(PLAIN_LOGS)).json == PLAIN_LOGS


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (
            log_change(log_file={"string_param": "x"}),
            "UNIMPLEMENTED",
            "log file location can not be updated through network protocol",
        ),
        (
            log_change(log_file={}),
            "UNIMPLEMENTED",
            "log file location can not be updated through network protocol",
        ),
        (log_change(log_info={}), "INVALID_ARGUMENT", "expect boolean for 'log_info'"),
        (log_change(log_error={"uint32_param": 1}), "INVALID_ARGUMENT", "expect boolean for 'log_error'"),
        (
            log_change(log_verbose_level={"bool_param": True}),
            "INVALID_ARGUMENT",
            "expect int32 for 'log_verbose_level'",
        ),
        (log_change(log_format={"bool_param": True}), "INVALID_ARGUMENT", "expect string for 'log_format'"),
        (
            log_change(log_format={"string_param": "x"}),
            "INVALID_ARGUMENT",
            "invalid argument for log_format, got: x",
        ),
    ],
)
def test_grpc_refuses_log_settings_of_the_wrong_type(
    server: Live, calls: Channel, request_: bytes, code: str, message: str
) -> None:
    assert calls.error("LogSettings", request_) == (code, message)
    assert server.get(LOGS).json == PLAIN_LOGS


def test_the_server_says_that_it_has_them(server: Live, tmp_path: Path) -> None:
    assert {"trace", "logging"} <= set(server.get("/v2").json["extensions"])
    assert list(tmp_path.iterdir()) == []
