"""Logs as Triton writes them."""

import logging
import re
import time

import pytest

from tpx.cli.logs import TritonFormatter, configure


def record(level: int, message: str, *words: object) -> logging.LogRecord:
    """A record of line 42 of server.py."""
    return logging.LogRecord("tpx.x", level, "/somewhere/server.py", 42, message, words, None)


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
    assert re.fullmatch(rf"{letter}\d{{4}} \d\d:\d\d:\d\d\.\d{{6}} \d+ server\.py:42\] loading: net:3", line)


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


def test_an_exception_comes_with_its_traceback() -> None:
    try:
        raise ValueError("boom")
    except ValueError as exc:
        made = record(logging.ERROR, "failed")
        made.exc_info = (type(exc), exc, exc.__traceback__)
    text = TritonFormatter().format(made)
    assert text.splitlines()[0].endswith("] failed")
    assert text.endswith("ValueError: boom")


def test_information_goes_to_stdout_and_trouble_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    configure(verbose=0)
    log = logging.getLogger("tpx.test")
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        log.log(level, "level %d", level)
    captured = capsys.readouterr()
    assert [line.rpartition("] ")[2] for line in captured.out.splitlines()] == ["level 20"]
    assert [line.rpartition("] ")[2] for line in captured.err.splitlines()] == ["level 30", "level 40"]


def test_verbose_logs_have_more(capsys: pytest.CaptureFixture[str]) -> None:
    configure(verbose=1)
    logging.getLogger("tpx.test").debug("a detail")
    assert "] a detail" in capsys.readouterr().out
