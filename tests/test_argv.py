"""Words of a command line, in all spellings that getopt_long takes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.test_options import Color, Config, parsed, refusal
from tpx.argv import from_argv
from tpx.errors import UsageError
from tpx.options import Options, from_mapping, required


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--http-port", "9"], "http_port", 9),
        (["--http-port=9"], "http_port", 9),
        (["--http_port=9"], "http_port", 9),
        (["--http-p", "9"], "http_port", 9),
        (["-p9"], "http_port", 9),
        (["-p=9"], "http_port", 9),
        (["-p", "9"], "http_port", 9),
        (["--http-port=1", "-p2"], "http_port", 2),
        (["--ratio=1e-3"], "ratio", 0.001),
        (["--verbose"], "verbose", True),
        (["-v"], "verbose", True),
        (["--verbose=false"], "verbose", False),
        (["--verbose", "off"], "verbose", False),
        (["--allow-http", "0"], "allow_http", False),
        (["--allow-http=FALSE"], "allow_http", False),
        (["--no-allow-http"], "allow_http", False),
        (["--mode=POLL"], "mode", "poll"),
        (["--color", "Blue"], "color", Color.BLUE),
        (["--colour=blue"], "color", Color.BLUE),
        (["--place=/x"], "place", Path("/x")),
        (["--limit=-5"], "limit", -5),
        (["--limit", "-5"], "limit", -5),
        (["-H", "a: b", "-Hc"], "header", ("a: b", "c")),
        (["--header=", "--header=x=y"], "header", ("", "x=y")),
        (["--sizes=1,2, 3"], "sizes", (1, 2, 3)),
        (["--sizes=1", "--sizes", "2,3"], "sizes", (1, 2, 3)),
        (["--pair=a:3"], "pair", ("a", 3)),
        (["a.onnx", "b"], "files", (Path("a.onnx"), Path("b"))),
        (["--", "-x", "--verbose"], "files", (Path("-x"), Path("--verbose"))),
        (["-"], "files", (Path("-"),)),
        (["--http-address="], "http_address", ""),
    ],
)
def test_words_become_values(words: Sequence[str], field: str, value: Any) -> None:
    assert getattr(parsed(*words), field) == value


def test_a_switch_takes_the_next_word_only_if_it_is_a_truth() -> None:
    config = parsed("--verbose", "a.onnx", "--allow-http", "on", "b.onnx")
    assert (config.verbose, config.allow_http) == (True, True)
    assert config.files == (Path("a.onnx"), Path("b.onnx"))


def test_short_switches_may_be_written_together() -> None:
    config = parsed("-vp9")
    assert (config.verbose, config.http_port) == (True, 9)


@pytest.mark.parametrize(
    ("words", "times"),
    [
        ((), 0),
        (("-w",), 1),
        (("-w", "-w"), 2),
        (("-ww",), 2),
        (("-wvw", "--wordy"), 3),
        (("--wordy=3",), 3),
        (("-w", "-w", "--no-wordy"), 0),
        (("-w", "a.onnx", "-w"), 2),
    ],
)
def test_a_counted_switch_is_how_often_it_is_given(words: Sequence[str], times: int) -> None:
    assert parsed(*words).wordy == times
    assert from_mapping(Config, {"model": "net", "wordy": True}).wordy == 1
    assert from_mapping(Config, {"model": "net", "wordy": times}).wordy == times


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--http-prt=1"], "Invalid long option '--http-prt' (did you mean '--http-port'?)"),
        (["--qqqqqqq"], "Invalid long option '--qqqqqqq'"),
        (["--http=1"], "Option '--http' is ambiguous: --http-port, --http-address"),
        (["-z"], "Invalid short option '-z'"),
        (["--http-port"], "Missing value for option '--http-port'"),
        (["-p"], "Missing value for option '-p'"),
        (["--http-port="], "Failed to parse --http-port. Invalid value provided:  (expected an integer)"),
        (
            ["--http-port=1.5"],
            "Failed to parse --http-port. Invalid value provided: 1.5 (expected an integer)",
        ),
        (["--ratio=much"], "Failed to parse --ratio. Invalid value provided: much (expected a number)"),
        (["--http-port=65536"], "--http-port must be between 0 and 65535, got 65536"),
        (["-p-1"], "-p must be between 0 and 65535, got -1"),
        (["--ratio=-0.1"], "--ratio must be at least 0, got -0.1"),
        (["--ratio=nan"], "--ratio must be at least 0, got nan"),
        (["--sizes=3,0"], "--sizes must be at least 1, got 0"),
        (["--sizes=3,x"], "Failed to parse --sizes. Invalid value provided: 3,x (expected an integer)"),
        (
            ["--verbose=maybe"],
            "Failed to parse --verbose. Invalid value provided: maybe (expected true, on, 1,",
        ),
        (["--no-allow-http=true"], "Option '--no-allow-http' takes no value"),
        (["--no-http-port"], "Invalid long option '--no-http-port'"),
        (
            ["--mode=pol"],
            "Failed to parse --mode. Invalid value provided: pol (expected one of: none, poll (did",
        ),
        (
            ["--color=green"],
            "Failed to parse --color. Invalid value provided: green (expected one of: red, blue",
        ),
        (["--pair=a"], "Failed to parse --pair. Invalid value provided: a (expected NAME:NUMBER)"),
        (["--pair=a:b"], "Failed to parse --pair. Invalid value provided: a:b (invalid literal"),
        (["---x"], "Invalid long option '---x'"),
    ],
)
def test_words_that_make_no_sense_are_refused(words: Sequence[str], message: str) -> None:
    assert refusal(*words).startswith(message)


def test_what_is_required_is_named() -> None:
    with pytest.raises(UsageError, match="missing: --model"):
        from_argv(Config, [])


def test_one_word_too_many_is_refused() -> None:
    class One(Options):
        file: str = required("file", positional=True, metavar="FILE")

    assert from_argv(One, ["a"]).file == "a"
    with pytest.raises(UsageError, match="Unknown command-line argument 'b'"):
        from_argv(One, ["a", "b"])
    with pytest.raises(UsageError, match="missing: FILE"):
        from_argv(One, [])
