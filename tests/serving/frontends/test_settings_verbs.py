"""Trace and log settings over both protocols, in Triton's words and types."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.live import Answer, Channel, Live, serving
from tests.serving.onnx_files import write_model
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


def trace_answer(data: bytes) -> dict[str, list[str]]:
    response = messages.TraceSettingResponse.FromString(data)
    return {name: list(setting.value) for name, setting in response.settings.items()}


def log_change(**values: dict[str, Any]) -> bytes:
    """A LogSettingsRequest; each value is a SettingValue's field and what it holds."""
    request = messages.LogSettingsRequest()
    for name, value in values.items():
        request.settings[name].SetInParent()
        for kind, held in value.items():
            setattr(request.settings[name], kind, held)
    data: bytes = request.SerializeToString()
    return data


def log_answer(data: bytes) -> dict[str, Any]:
    response = messages.LogSettingsResponse.FromString(data)
    return {
        name: getattr(setting, setting.WhichOneof("parameter_choice"))
        for name, setting in response.settings.items()
    }


# trace settings over HTTP


def test_trace_settings_have_tritons_members_in_its_order(server: Live) -> None:
    answer = server.get(TRACES)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert list(answer.json.items()) == list(start_setting(server).items())
    assert server.get(NET_TRACES).json == answer.json


def test_a_change_answers_with_all_settings(server: Live) -> None:
    change = {"trace_level": ["TENSORS", "TIMESTAMPS"], "trace_rate": "7", "trace_count": "3"}
    answer = post(server, TRACES, change)
    told = {**start_setting(server), **change, "trace_level": ["TIMESTAMPS", "TENSORS"]}
    assert (answer.status, answer.json) == (200, told)
    assert server.get(TRACES).json == told
    assert post(server, TRACES, {"trace_level": ["OFF"]}).json["trace_level"] == ["OFF"]
    assert post(server, TRACES, {"trace_level": None, "trace_rate": None}).json == {
        **start_setting(server),
        "trace_count": "3",
    }


def test_a_model_has_its_own_until_it_is_cleared(server: Live) -> None:
    assert post(server, NET_TRACES, {"trace_rate": "7"}).json["trace_rate"] == "7"
    assert server.get(TRACES).json["trace_rate"] == "500"
    assert post(server, TRACES, {"log_frequency": "4"}).status == 200
    assert server.get(NET_TRACES).json["log_frequency"] == "4"
    assert post(server, NET_TRACES, {"trace_rate": None}).json["trace_rate"] == "500"


def test_saying_nothing_changes_nothing(server: Live) -> None:
    assert post(server, TRACES, {}).json == start_setting(server)
    assert post(server, LOGS, {}).json == server.get(LOGS).json


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"trace_file": "/etc/x"}, 501, "trace file location can not be updated through network protocol"),
        ({"trace_file": None}, 501, "trace file location can not be updated through network protocol"),
        ({"trace_mode": "opentelemetry"}, 501, "trace mode can not be updated through network protocol"),
        ({"trace_level": ["OFF", "TENSORS"]}, 400, "Expect only one trace level 'OFF' is specified"),
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
        ({"trace_count": "-2"}, 400, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
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
def test_a_change_that_cannot_be_is_refused_and_changes_nothing(
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


# trace settings over gRPC


def test_grpc_answers_lists_of_texts(server: Live, calls: Channel) -> None:
    start = {name: t if isinstance(t, list) else [t] for name, t in start_setting(server).items()}
    assert trace_answer(calls.send("TraceSetting", b"")) == start
    changed = calls.send("TraceSetting", trace_change("net", trace_level=["TENSORS"], trace_rate=["3"]))
    assert trace_answer(changed) == {**start, "trace_level": ["TENSORS"], "trace_rate": ["3"]}
    assert trace_answer(calls.send("TraceSetting", trace_change("net"))) == trace_answer(changed)
    assert trace_answer(calls.send("TraceSetting", trace_change())) == start
    cleared = calls.send("TraceSetting", trace_change("net", trace_level=[], trace_rate=[]))
    assert trace_answer(cleared) == start


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (
            trace_change(trace_file=["x"]),
            "UNIMPLEMENTED",
            "trace file location can not be updated through network protocol",
        ),
        (
            trace_change(trace_file=[]),
            "UNIMPLEMENTED",
            "trace file location can not be updated through network protocol",
        ),
        (
            trace_change(trace_level=["TENSORS", "OFF"]),
            "INVALID_ARGUMENT",
            "Expect only one trace level 'OFF' is specified",
        ),
        (trace_change(trace_rate=["1", "2"]), "INVALID_ARGUMENT", "expect only 1 value for 'trace_rate'"),
        (trace_change(log_frequency=["x"]), "INVALID_ARGUMENT", "Unable to parse 'log_frequency', got: x"),
        (
            trace_change(trace_count=["-2"]),
            "INVALID_ARGUMENT",
            "Unable to parse 'trace_count'. Expecting value >= -1, got: -2",
        ),
        (trace_change("nope"), "INVALID_ARGUMENT", "Request for unknown model : nope"),
        (
            trace_change("nope", trace_rate=["x"]),
            "INVALID_ARGUMENT",
            "Request for unknown model : nope",
        ),
    ],
)
def test_grpc_refuses_in_tritons_words(
    server: Live, calls: Channel, request_: bytes, code: str, message: str
) -> None:
    assert calls.error("TraceSetting", request_) == (code, message)
    assert server.get(TRACES).json == start_setting(server)


# log settings


def test_log_settings_have_tritons_members_types_and_order(server: Live, calls: Channel) -> None:
    assert server.get(LOGS).body == json.dumps(PLAIN_LOGS, separators=(",", ":")).encode()
    answer = log_answer(calls.send("LogSettings", b""))
    assert answer == PLAIN_LOGS
    assert type(answer["log_info"]) is bool


def test_both_protocols_change_the_same_log(server: Live, calls: Channel) -> None:
    change = {"log_info": False, "log_verbose_level": 3, "log_format": "ISO8601", "log_error": None}
    told = {**PLAIN_LOGS, "log_info": False, "log_verbose_level": 3, "log_format": "ISO8601"}
    assert post(server, LOGS, change).json == told
    assert log_answer(calls.send("LogSettings", b"")) == told
    changed = calls.send(
        "LogSettings",
        log_change(log_info={"bool_param": True}, log_verbose_level={"uint32_param": 0}),
    )
    assert log_answer(changed) == {**PLAIN_LOGS, "log_format": "ISO8601"} == server.get(LOGS).json
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
