"""Logs as Triton writes them."""

import json
import logging
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tpx.cli.logs import TritonFormatter, configure, escapes, finish
from tpx.errors import UsageError
from tpx.serving.logs import LogControl, LogSettings

LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def record(level: int, message: str, *words: object, **more: Any) -> logging.LogRecord:
    """A record of line 42 of server.py."""
    made = logging.LogRecord("tpx.x", level, "/somewhere/server.py", 42, message, words, None)
    made.__dict__.update(more)
    return made


def log_all() -> None:
    """One message of each level."""
    for level in LEVELS:
        logging.getLogger("tpx.test").log(level, "level %d", level)


def said(text: str) -> list[str]:
    """The messages of these lines."""
    return [json.loads(line.partition("] ")[2]) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("level", "letter"),
    [
        (logging.DEBUG, "I"),
        (logging.INFO, "I"),
        (logging.WARNING, "W"),
        (logging.ERROR, "E"),
        (logging.CRITICAL, "E"),
    ],
)
def test_a_line_has_letter_time_process_place_and_words(level: int, letter: str) -> None:
    line = TritonFormatter().format(record(level, "loading: %s:%d", "net", 3))
    assert re.fullmatch(
        rf'{letter}\d{{4}} \d\d:\d\d:\d\d\.\d{{6}} \d+ server\.py:42\] "loading: net:3"', line
    )


def test_the_other_format_has_an_iso_time() -> None:
    made = record(logging.WARNING, "x")
    made.created = 86400 * 365 + 0.75
    line = TritonFormatter("ISO8601").format(made)
    assert re.fullmatch(r'1971-01-01T00:00:00Z W \d+ server\.py:42\] "x"', line)


def test_json_has_the_record_and_its_traceback_on_one_line() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        made = record(logging.ERROR, "model %s\u202e", "net")
        made.exc_info = sys.exc_info()
    made.created = 86400 * 365 + 0.75
    line = TritonFormatter("json").format(made)
    assert "\n" not in line
    assert "\u202e" not in line
    fields = json.loads(line)
    assert fields.pop("traceback").endswith("ValueError: a\nb")
    assert fields == {
        "time": "1971-01-01T00:00:00.750000+00:00",
        "level": "ERROR",
        "message": "model net\u202e",
        "process": made.process,
        "file": "server.py",
        "line": 42,
    }


def test_the_time_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        made = record(logging.INFO, "x")
        made.created = 0.25
        assert TritonFormatter().format(made).startswith("I0101 00:00:00.250000 ")
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("a\nE1120 forged", r'"a\nE1120 forged"'),
        ('say "x"', r'"say \"x\""'),
        ("\x1b[31m\r\0", r'"\u001b[31m\r\u0000"'),
        ("ü", '"ü"'),
        ("\x7f\x9b31m\x85E1120 forged", r'"\u007f\u009b31m\u0085E1120 forged"'),
        ("a\u2028E1120\u2029forged", r'"a\u2028E1120\u2029forged"'),
        ("\u202eog\u2066x\u200f\u061c", r'"\u202eog\u2066x\u200f\u061c"'),
    ],
)
def test_no_message_can_look_like_another_line(message: str, shown: str) -> None:
    assert TritonFormatter().format(record(logging.INFO, "%s", message)).endswith(f"] {shown}")


@pytest.mark.parametrize(("value", "escaped"), [(None, True), ("1", True), ("", True), ("0", False)])
def test_escaping_is_switched_off_by_tritons_variable(value: str | None, escaped: bool) -> None:
    environment = {} if value is None else {"TRITON_SERVER_ESCAPE_LOG_MESSAGES": value}
    assert escapes(environment) is escaped
    line = TritonFormatter(escape=escaped).format(record(logging.INFO, "plain"))
    assert line.endswith('] "plain"' if escaped else "] plain")


def test_a_table_stands_unescaped_below_its_line() -> None:
    text = TritonFormatter().format(record(logging.INFO, "", block='+--+\n| "|\n'))
    head, _, rest = text.partition("\n")
    assert head.endswith("server.py:42] ")
    assert rest == '+--+\n| "|\n'


def test_an_exception_comes_with_its_traceback_behind_the_margin() -> None:
    try:
        raise ValueError("boom\nE1120 forged\x1b[0m\x9b1m\u202e")
    except ValueError as exc:
        made = record(logging.ERROR, "failed")
        made.exc_info = (type(exc), exc, exc.__traceback__)
    first, *rest = TritonFormatter().format(made).splitlines()
    assert first.endswith('] "failed"')
    assert all(line.startswith("    ") for line in rest)
    assert rest[-2:] == ["    ValueError: boom", r"    E1120 forged\x1b[0m\u009b1m\u202e"]


def test_a_traceback_from_a_models_process_has_a_line_for_each_of_its_lines() -> None:
    made = record(logging.ERROR, "failed")
    made.__dict__["traceback"] = "Traceback (most recent call last):\nE1120 forged\x1b[0m"
    first, *rest = TritonFormatter().format(made).splitlines()
    assert first.endswith('] "failed"')
    assert rest == ["    Traceback (most recent call last):", r"    E1120 forged\x1b[0m"]
    fields = json.loads(TritonFormatter("json").format(made))
    assert fields["traceback"] == made.__dict__["traceback"]


def test_information_goes_to_stdout_and_trouble_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogControl(LogSettings()))
    log_all()
    captured = capsys.readouterr()
    assert said(captured.out) == ["level 20"]
    assert said(captured.err) == ["level 30", "level 40"]


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        (LogSettings(log_verbose_level=1), ["level 10", "level 20", "level 30", "level 40"]),
        (LogSettings(log_info=False), ["level 30", "level 40"]),
        (LogSettings(log_info=False, log_verbose_level=2), ["level 10", "level 30", "level 40"]),
        (LogSettings(log_warning=False), ["level 20", "level 40"]),
        (LogSettings(log_error=False), ["level 20", "level 30"]),
        (LogSettings(log_info=False, log_warning=False, log_error=False), []),
    ],
)
def test_each_level_has_its_switch(
    settings: LogSettings, messages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    configure(LogControl(settings))
    log_all()
    captured = capsys.readouterr()
    assert said(captured.out + captured.err) == messages


def test_what_is_changed_while_it_runs_takes_effect_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    control = LogControl(LogSettings())
    configure(control)
    control.update(replace(control.settings, log_info=False, log_verbose_level=1, log_format="ISO8601"))
    log_all()
    captured = capsys.readouterr()
    assert said(captured.out) == ["level 10"]
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ W ", captured.err)
    control.update(LogSettings())
    assert not logging.getLogger("tpx.test").isEnabledFor(logging.DEBUG)


def test_libraries_do_not_tell_their_details(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogControl(LogSettings(log_verbose_level=5)))
    logging.getLogger("somebody.else").debug("chatter")
    logging.getLogger("asyncio").info("chatter")
    assert capsys.readouterr().out == ""


def test_a_file_takes_everything_and_is_added_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tpx.log"
    file.write_text("before\n", encoding="utf-8")
    configure(LogControl(LogSettings(log_file=str(file))))
    log_all()
    before, *lines = file.read_text(encoding="utf-8").splitlines()
    assert before == "before"
    assert said("\n".join(lines)) == ["level 20", "level 30", "level 40"]
    assert capsys.readouterr() == ("", "")


def test_a_file_that_cannot_be_opened_is_a_wrong_option(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Failed to open log file '.*nowhere/x': No such file or directory"):
        configure(LogControl(LogSettings(log_file=str(tmp_path / "nowhere" / "x"))))


def test_a_full_disk_is_told_once_and_logging_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogControl(LogSettings(log_file="/dev/full")))
    for _ in range(3):
        log_all()
    assert capsys.readouterr().err == "log file '/dev/full': [Errno 28] No space left on device\n"


def test_handlers_of_libraries_are_not_closed() -> None:
    closed: list[bool] = []

    class Foreign(logging.NullHandler):
        def close(self) -> None:
            closed.append(True)

    handler = Foreign()
    logging.getLogger().addHandler(handler)
    try:
        finish()
    finally:
        logging.getLogger().removeHandler(handler)
    assert closed == []
