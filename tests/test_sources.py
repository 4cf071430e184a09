"""Options from variables and files: which of them wins, and what is told about those that mean nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from tpx.analyzer.options import ProfileSpec
from tpx.cli.show_config import describe_options
from tpx.errors import UsageError
from tpx.options import Options, build, fields_of, option
from tpx.perf.options.words import PerfWords
from tpx.serving.options import ServeWords
from tpx.sources import (
    SECTION,
    collect,
    config_file,
    doubtful_variables,
    missing_flags,
    show_config,
    values_of,
    variable_of,
)


def _mask(text: str) -> str:
    return text.partition("=")[0] + "=***"


class Words(Options):
    """Options of each kind, and how they are given."""

    http_port: int = option(8000, "port", "-p", minimum=0)
    openai_port: int | None = option(None, "port")
    url: str = option("", "address")
    verbose: bool = option(False, "more words")
    often: int = option(0, "words", counted=True)
    header: tuple[str, ...] = option((), "headers", "-H", mask=_mask)
    sizes: tuple[int, ...] = option((1,), "sizes", comma=True)
    limits: Literal["off", "on"] = option("on", "limits")
    place: Path | None = option(None, "place")
    labels: Mapping[str, str] = option({}, "labels", parse=yaml.safe_load, read=dict)
    config_file: Path | None = config_file("-f", section=SECTION)
    show_config: bool = show_config(SECTION)


def read(*words: str, **variables: str) -> dict[str, Any]:
    """Return the values that a command line and variables of `tpx serve` give."""
    environ = {f"TPX_SERVE_{name.upper()}": text for name, text in variables.items()}
    return values_of(collect(Words, words, "serve", environ))


def refusal(*words: str, **variables: str) -> str:
    """Return why they are refused."""
    with pytest.raises(UsageError) as caught:
        read(*words, **variables)
    return caught.value.message


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that sets two options."""
    path = tmp_path / "serve.yaml"
    path.write_text("http-port: 1\nurl: file\nheader: [a, b]\n", encoding="utf-8")
    return path


def test_a_flag_precedes_a_variable_and_that_the_file(file: Path) -> None:
    assert read(f"-f{file}") == {"config_file": file, "http_port": 1, "url": "file", "header": ("a", "b")}
    assert read(f"-f{file}", http_port="2", header="c")["http_port"] == 2
    given = read(f"-f{file}", "-p3", http_port="2", header="c")
    assert (given["http_port"], given["url"], given["header"]) == (3, "file", ("c",))
    assert read(config_file=str(file), url="x")["url"] == "x"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("http_port", "9", 9),
        ("verbose", "true", True),
        ("verbose", "off", False),
        ("often", "2", 2),
        ("header", "a: b\nc: d\n", ("a: b", "c: d")),
        ("sizes", "1,2", (1, 2)),
        ("place", "/x y", Path("/x y")),
        ("limits", "OFF", "off"),
    ],
)
def test_a_variable_has_the_value_of_a_flag_and_a_line_for_each_of_several(
    name: str, text: str, value: object
) -> None:
    assert read(**{name: text}) == {name: value}


def test_an_empty_variable_is_none() -> None:
    assert read(http_port="", header="") == {}


def test_a_bad_value_is_told_with_its_variable() -> None:
    assert refusal(http_port="x") == (
        "Failed to parse TPX_SERVE_HTTP_PORT. Invalid value provided: x (expected an integer)"
    )
    assert read("--http-port=9", http_port="x") == {"http_port": 9}
    assert refusal(http_port="-1") == "TPX_SERVE_HTTP_PORT must be at least 0, got -1"


LINKS = {
    "TPX_SERVE_SERVICE_HOST": "10.0.0.1",
    "TPX_SERVE_SERVICE_PORT": "8000",
    "TPX_SERVE_SERVICE_PORT_HTTP": "8000",
    "TPX_SERVE_PORT": "tcp://10.0.0.1:8000",
    "TPX_SERVE_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "TPX_SERVE_PORT_8000_TCP_PROTO": "tcp",
    "TPX_SERVE_PORT_8000_TCP_PORT": "8000",
    "TPX_SERVE_PORT_8000_TCP_ADDR": "10.0.0.1",
    "TPX_SERVE_HTTP_PORT": "tcp://10.0.0.1:80",
    "TPX_SERVE_HTTP_PORT_80_TCP_PORT": "80",
    "TPX_SERVE_OPENAI_PORT": "tcp://[fd00::1]:80",
}
"""What Kubernetes sets for Services called tpx-serve, tpx-serve-http and tpx-serve-openai."""


def test_links_to_services_of_kubernetes_are_no_options() -> None:
    assert collect(Words, [], "serve", LINKS) == {}
    assert list(doubtful_variables("serve", LINKS, Words)) == [
        f"{name}={LINKS[name]} is ignored: Kubernetes sets it for a Service of that name"
        for name in ("TPX_SERVE_HTTP_PORT", "TPX_SERVE_OPENAI_PORT")
    ]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "HTTP_PRT",
            "unknown environment variable 'TPX_SERVE_HTTP_PRT' (did you mean 'TPX_SERVE_HTTP_PORT'?)",
        ),
        ("FRIENDS", "unknown environment variable 'TPX_SERVE_FRIENDS'"),
        ("SHOW_CONFIG", "unknown environment variable 'TPX_SERVE_SHOW_CONFIG'"),
        ("URL", None),
    ],
)
def test_an_unknown_variable_is_told_with_the_nearest(name: str, told: str | None) -> None:
    environ = {f"TPX_SERVE_{name}": "1", "TPX_PERF_X": "1", "TPX_PORT": "tcp://10.0.0.1:80", "PATH": "/bin"}
    assert list(doubtful_variables("serve", environ, Words)) == ([told] if told else [])


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.yaml", "url: x\nhttp_prt: 1\n", "{}:2: unknown key 'http_prt' (did you mean 'http_port'?)"),
        ("a.toml", "url = 'x'\nhttp_prt = 1\n", "{}:2: unknown key 'http_prt' (did you mean 'http_port'?)"),
        ("a.toml", "[http]\nport = 1\n", "{}:1: unknown key 'http' (did you mean 'http_port'?)"),
        (
            "a.toml",
            "http_port = 'x'",
            "Failed to parse {}:1: http_port. Invalid value provided: x (expected an integer)",
        ),
        ("a.yaml", "url: x\nurl: y\n", "{}:2: url is repeated here; it was first set on line 1"),
        ("a.yaml", "show_config: true\n", "{}:1: unknown key 'show_config'"),
        ("a.yaml", "config_file: b.yaml\n", "{}:1: a file names no other one"),
        ("a.yaml", "[x]", "--config-file {}: expected options as `key: value` lines"),
        ("a.yaml", "a: [", "--config-file {}: not YAML: "),
        ("a.toml", "a = ", "--config-file {}: not TOML: "),
        ("a.yaml", "\xff", "--config-file {}: not UTF-8: "),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_the_line(
    name: str, text: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="latin-1")
    assert refusal("-f", str(path)).startswith(told.format(path))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refusal("-f", str(tmp_path / "no")) == f"--config-file {tmp_path}/no: No such file or directory"


def test_toml_says_the_same_as_yaml(file: Path) -> None:
    other = file.with_suffix(".toml")
    other.write_text('http-port = 1\nurl = "file"\nheader = ["a", "b"]\n', encoding="utf-8")
    assert read("-f", str(other)) == {**read("-f", str(file)), "config_file": other}


VARIABLES: Mapping[str, str] = {"TPX_SERVE_OFTEN": "2", "TPX_SERVE_LIMITS": "off", "TPX_SERVE_PLACE": "/x"}


def test_a_shown_configuration_says_where_each_value_comes_from_and_is_a_file(file: Path) -> None:
    given = collect(Words, [f"-f{file}", "-p3", "--sizes=2,3", "--show-config"], "serve", VARIABLES)
    shown = describe_options(Words, given)
    places = {line.split(":")[0]: line.rpartition("  # ")[2] for line in shown.splitlines() if "  # " in line}
    assert places == {
        "http_port": "-p",
        "# openai_port": "default",
        "url": str(file),
        "# verbose": "default",
        "often": "TPX_SERVE_OFTEN",
        "# header": str(file),
        "sizes": "--sizes",
        "limits": "TPX_SERVE_LIMITS",
        "place": "TPX_SERVE_PLACE",
        "# labels": "default",
        "# config_file": "-f",
    }
    again = file.with_name("shown.yaml")
    again.write_text(shown, encoding="utf-8")
    left_out = {"config_file", "header", "show_config"}
    assert {**read("-f", str(again)), "config_file": 0} == {
        **{name: value for name, value in values_of(given).items() if name not in left_out},
        "config_file": 0,
    }


def test_credentials_are_not_shown() -> None:
    words = [
        "-Hpart:key=abc",
        "--url=s3://user:abc@host/path?api_key=abc",
        "--place=redis,Password=abc,port=1",
        "--labels={header: 'Authorization: Bearer abc', SECRET_KEY: abc}",
    ]
    shown = describe_options(Words, collect(Words, words, "serve", {}))
    assert "abc" not in shown
    assert yaml.safe_load(shown) is None
    assert "# url: s3://***@host/path?api_key=***" in shown
    assert "# header: ['part:key=***']" in shown
    assert "# place: redis,Password=***,port=1" in shown
    assert "# labels: {SECRET_KEY: '***', header: 'Authorization: ***'}" in shown


def test_variables_and_the_file_as_flags_make_the_same_configuration(file: Path) -> None:
    given = collect(Words, [f"-f{file}", "-p3"], "serve", VARIABLES)
    flags = missing_flags(given)
    assert "--http-port=1" not in flags
    again = values_of(collect(Words, [*flags, "-p3"], "serve", {}))
    assert build(Words, {**again, "config_file": file}) == build(Words, values_of(given))


@pytest.mark.parametrize(
    ("command", "config"), [("serve", ServeWords), ("perf", PerfWords), ("analyze", ProfileSpec)]
)
def test_no_option_is_taken_for_a_link(command: str, config: type) -> None:
    names = [variable_of(command, field) for field in fields_of(config) if field.option.setting]
    environ = dict.fromkeys(names, "x")
    assert list(doubtful_variables(command, environ, config)) == []
