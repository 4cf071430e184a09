"""One option, one line: what getopt_long would make of a command line, and what YAML says the same."""

import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from tpx.argv import from_argv
from tpx.errors import UsageError
from tpx.options import Options, build, fields_of, from_mapping, given, group, nearest, option, required


class Color(Enum):
    """A choice."""

    RED = "red"
    BLUE = "blue"


def _pair(text: str) -> tuple[str, int]:
    name, colon, number = text.partition(":")
    if not colon:
        raise ValueError("expected NAME:NUMBER")
    return name, int(number)


def _headers(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split(","))


class Config(Options):
    """Every kind of option."""

    model: str = required("name", "-m")
    files: tuple[Path, ...] = option((), "files", positional=True, metavar="FILE")
    http_port: int = option(8000, "port", "-p", minimum=0, maximum=65535)
    http_address: str = option("127.0.0.1", "address")
    ratio: float = option(0.5, "ratio", minimum=0)
    verbose: bool = option(False, "more words", "-v")
    wordy: int = option(0, "words, by how often", "-w", counted=True)
    allow_http: bool = option(True, "serve HTTP")
    mode: Literal["none", "poll"] = option("none", "mode")
    limits: Literal["off", "on"] = option("on", "limits")
    color: Color = option(Color.RED, "color", "--colour")
    place: Path | None = option(None, "place")
    limit: int | None = option(None, "limit")
    header: tuple[str, ...] = option((), "headers", "-H")
    sizes: tuple[int, ...] = option((1,), "sizes", comma=True, minimum=1)
    pair: tuple[str, int] | None = option(None, "a pair", parse=_pair)
    legacy: str = option("", "does nothing", inert=True)
    hidden: int = 3


def parsed(*words: str) -> Config:
    """The configuration of a command line with a model."""
    return from_argv(Config, ["--model=net", *words])


def refusal(*words: str) -> str:
    """Why a command line is refused."""
    with pytest.raises(UsageError) as caught:
        parsed(*words)
    return caught.value.message


def test_without_words_there_are_the_defaults() -> None:
    assert parsed() == Config(model="net")


def test_fields_are_in_the_order_they_were_written_and_only_options() -> None:
    names = [field.name for field in fields_of(Config)]
    assert names[:3] == ["model", "files", "http_port"]
    assert "hidden" not in names


def test_words_override_a_base_and_lists_replace_it() -> None:
    base = from_mapping(Config, {"model": "net", "http_port": 1, "header": ["a"], "ratio": 2})
    values = {"model": base.model, "http_port": base.http_port, "header": base.header, "ratio": base.ratio}
    config = from_argv(Config, ["-p5", "-Hb", "-Hc"], values)
    assert (config.http_port, config.header, config.ratio) == (5, ("b", "c"), 2)


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("http_port", 9, 9),
        ("http-port", "9", 9),
        ("http_port", [9], 9),
        ("verbose", True, True),
        ("verbose", "off", False),
        ("mode", "poll", "poll"),
        ("limits", False, "off"),  # YAML's `off`
        ("header", ["a", "b"], ("a", "b")),
        ("header", "a", ("a",)),
        ("header", [], ()),
        ("sizes", [1, 2], (1, 2)),
        ("sizes", "1,2", (1, 2)),
        ("pair", "a:3", ("a", 3)),
        ("limit", None, None),
        ("http_port", None, 8000),
    ],
)
def test_yaml_says_the_same(key: str, given: Any, value: Any) -> None:
    config = from_mapping(Config, {"model": "net", key: given})
    assert getattr(config, key.replace("-", "_")) == value


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"http_prt": 1}, "file.yaml: unknown key 'http_prt' (did you mean 'http_port'?)"),
        (
            {"http_port": "x"},
            "Failed to parse file.yaml: http_port. Invalid value provided: x (expected an int",
        ),
        ({"http_port": [1, 2]}, "file.yaml: http_port takes one value, got 2"),
        ({"http_port": []}, "file.yaml: http_port takes one value, got 0"),
        ({"http_port": 70000}, "file.yaml: http_port must be between 0 and 65535, got 70000"),
        ({"hidden": 1}, "file.yaml: unknown key 'hidden'"),
        ({}, "missing: --model"),
    ],
)
def test_yaml_that_makes_no_sense_is_refused(values: dict[str, Any], message: str) -> None:
    full = {"model": "net", **values} if values else {}
    with pytest.raises(UsageError) as caught:
        from_mapping(Config, full, source="file.yaml")
    assert caught.value.message.startswith(message)


def test_options_that_do_nothing_come_last() -> None:
    assert [field.name for field in fields_of(Config)][-1:] == ["legacy"]


def test_the_nearest_word_is_only_offered_when_it_is_near() -> None:
    assert nearest("serv", ["serve", "perf"]) == " (did you mean 'serve'?)"
    assert nearest("banana", ["serve", "perf"]) == ""
    assert nearest("p99", ["perf_throughput", "perf_latency_p99"]) == " (did you mean 'perf_latency_p99'?)"
    assert nearest("p9", ["perf_latency_p99"]) == ""
    assert nearest("--concurency", ["--older-concurrency", "--concurrency-range"]) == (
        " (did you mean '--concurrency-range'?)"
    )


class Http(Options):
    """A group of options."""

    port: int = option(8000, "port", "-p")
    headers: Mapping[str, str] = option({}, "headers of every answer", section="Headers", parse=_headers)


class Grouped(Options):
    """An option, and a group."""

    name: str = option("tpx", "name", section="Server")
    http: Http = group(Http, "HTTP")


def test_options_of_a_group_are_flags_and_keys_beside_all_others() -> None:
    made = Grouped(name="mine", http=Http(port=9))
    assert from_argv(Grouped, ["--port=9", "--name=mine"]) == made
    assert from_mapping(Grouped, {"name": "mine", "port": 9}) == made
    with pytest.raises(UsageError, match="'--prt' \\(did you mean '--port'"):
        from_argv(Grouped, ["--prt=9"])


def test_a_group_is_a_section_of_the_help_unless_an_option_has_one_of_its_own() -> None:
    sections = {field.name: field.section for field in fields_of(Grouped)}
    assert sections == {"name": "Server", "port": "HTTP", "headers": "Headers"}


def test_what_differs_from_the_defaults_is_told_by_name() -> None:
    assert given(Grouped()) == {}
    assert given(from_argv(Grouped, ["--port=9", "--headers=a:b"])) == {"port": 9, "headers": {"a": "b"}}


def test_a_value_that_no_option_has_is_an_error_of_the_caller() -> None:
    with pytest.raises(TypeError, match="Grouped has no prot"):
        build(Grouped, {"prot": 9})


def test_options_have_the_methods_of_a_frozen_dataclass() -> None:
    one = Config(model="net", http_port=9)
    assert one == replace(Config(model="net"), http_port=9) != Config(model="net")
    assert hash(one) == hash(pickle.loads(pickle.dumps(one)))
    assert repr(one).startswith("Config(model='net', files=(), http_port=9, ")
    with pytest.raises(FrozenInstanceError):
        setattr(one, "http_port", 8)  # noqa: B010 (mypy refuses an assignment)
    with pytest.raises(TypeError, match="Config has no port"):
        replace(one, port=9)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Config needs model"):
        Config()
