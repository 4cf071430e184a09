"""What a Python model raises is in the log, with its model, version and traceback."""

import json
import logging
from pathlib import Path

import pytest

from tests.serving.backends.python.asking import ask, say
from tests.serving.backends.python.conftest import SAY
from tests.serving.backends.python.zoo import DECOUPLED, SAME, add
from tests.serving.live import Live, serving
from tests.waiting import eventually
from tpx.serving.backends.python.worker.services import Reports

ZOO = ("say", "returns")


def errors(caplog: pytest.LogCaptureFixture, file: str = "model.py") -> list[logging.LogRecord]:
    """The ERROR lines as of a file."""
    return [one for one in caplog.records if one.levelno == logging.ERROR and one.filename == file]


def whole(record: logging.LogRecord) -> str:
    """The message of a record with its traceback."""
    return f"{record.getMessage()}\n{getattr(record, 'traceback', '')}"


def test_an_exception_of_execute_is_logged_once_with_its_traceback(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    assert say(live, "fail on purpose").status == 500
    [record] = errors(caplog)
    lines = whole(record).splitlines()
    assert lines[0] == (
        "Failed to process the request(s) for model 'say_0_0', message: ValueError: on purpose "
        "[model 'say' version 1]"
    )
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: on purpose"
    assert lines[2].endswith(", in execute")
    assert lines[-3].endswith(f"line {record.lineno}, in fail")


def test_what_execute_must_not_return_is_logged(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    assert ask(live, "returns", 1, what="tuple").status == 500
    [record] = errors(caplog, "execution.py")
    assert record.getMessage() == (
        "Failed to process the request(s) for model 'returns_0_0', message: Expected a list in the execute "
        "return, found type '<class 'tuple'>'. [model 'returns' version 1]"
    )


@pytest.mark.parametrize(
    ("value", "start", "function"),
    [
        (
            1,
            "Failed to process the request(s) for model 'raises_0_0', message: ValueError: after the final "
            "flag",
            "execute",
        ),
        (2, "thread 'mine' failed, message: ValueError: in a thread", "fail_there"),
        (3, "Task exception was never retrieved, message: ValueError: in a task", "fail_later"),
    ],
)
def test_an_exception_that_no_client_sees_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: int, start: str, function: str
) -> None:
    add(tmp_path, "raises", config=SAME + DECOUPLED + "instance_group { count: 1 }", version="3")
    with serving(tmp_path) as live:
        body = {"x": [value]}
        answer = live.http("POST", "/v2/models/raises/generate", json.dumps(body).encode())
        assert answer.status == 200, answer.body
        eventually(lambda: bool(errors(caplog)))
        [record] = errors(caplog)
        text = whole(record)
        assert text.startswith(f"{start} [model 'raises' version 3]\nTraceback (most recent call last):\n")
        assert f"line {record.lineno}, in {function}" in text


@pytest.mark.parametrize(
    ("where", "start"),
    [
        ("auto_complete_config", "Failed to complete the configuration of model 'raises'"),
        ("initialize", "Failed to initialize model 'raises_0_0'"),
        ("is_ready", "is_ready of model 'raises_0_0' failed"),
        ("finalize", "finalize of model 'raises_0_0' failed"),
    ],
)
def test_an_exception_of_the_other_functions_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str, start: str
) -> None:
    (add(tmp_path, "raises", config=SAME + "instance_group { count: 1 }") / "raise").write_text(where)
    with serving(tmp_path, exit_on_error=False, strict_readiness=False) as live:
        live.get("/v2/models/raises/ready")
    [record] = errors(caplog)
    text = whole(record)
    assert text.startswith(f"{start}, message: ValueError: in {where} [model 'raises' version 1]\nTraceback")
    assert f"in {where}\n" in text


def test_a_model_that_fails_at_every_request_does_not_fill_the_log(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(30):
        assert say(live, "fail again").status == 500
    assert 0 < len(errors(caplog)) <= 10


def test_the_next_line_tells_how_many_were_left_out() -> None:
    reports = Reports()
    assert [reports._admit(100.0 + index / 2) for index in range(10)] == [0] * 10
    assert [reports._admit(109.5) for _ in range(3)] == [None] * 3
    assert [reports._admit(110.0), reports._admit(110.1)] == [3, 0]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, "failed to load 'absent', failed to poll from model repository"),
        ({"parameters": {"config": "no JSON"}}, "failed to load 'absent', failed to poll from model"),
        ({"parameters": {"file:1/model.py": ""}}, "Load parameter 'config' must be specified"),
    ],
)
def test_a_refused_load_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, parameters: dict[str, object], words: str
) -> None:
    add(tmp_path, "say", config=SAY)
    with serving(tmp_path, model_control_mode="explicit") as live:
        path = "/v2/repository/models/absent/load"
        answer = live.http("POST", path, json.dumps(parameters).encode())
        assert answer.status == 400
    [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert words in record.getMessage()
    assert "absent" in record.getMessage()
