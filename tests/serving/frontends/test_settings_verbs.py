"""Trace and log settings over both protocols, in Triton's words and types."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.live import Answer, Live, serving
from tests.serving.onnx_files import write_model
from tests.serving.transports import TRANSPORTS, Transport, connected
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


def test_a_setting_belongs_to_no_version_and_takes_no_other_method(server: Live) -> None:
    assert server.get("/v2/models/net/versions/1/trace/setting").status == 404
    for path in (TRACES, NET_TRACES, LOGS):
        assert server.http("PUT", path, b"{}").status == 405


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


def test_null_leaves_a_log_setting_as_it_is(server: Live) -> None:
    assert post(server, LOGS, dict.fromkeys(PLAIN_LOGS)).json == PLAIN_LOGS


def test_a_change_that_is_refused_in_part_changes_nothing(server: Live) -> None:
    answer = post(server, LOGS, {"log_info": False, "log_format": "x"})
    assert (answer.status, answer.error) == (503, "invalid argument for --log_format, got: x")
    assert post(server, TRACES, {"trace_level": ["TENSORS"], "trace_rate": "x"}).status == 400
    assert (server.get(LOGS).json, server.get(TRACES).json) == (PLAIN_LOGS, start_setting(server))


def test_the_server_says_that_it_has_them(server: Live, tmp_path: Path) -> None:
    assert {"trace", "logging"} <= set(server.get("/v2").json["extensions"])
    assert list(tmp_path.iterdir()) == []
