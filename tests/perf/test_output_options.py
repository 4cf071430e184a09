"""Options of output and metrics: values, messages, what goes together."""

from pathlib import Path

import pytest

from tests.perf.parsing import parse
from tpx.errors import UsageError
from tpx.perf.metrics_page import MetricsAddress

FILES = {
    "-f": "csv",
    "--profile-export-file": "profile_export_file",
    "--json": "json",
    "--jsonl": "jsonl",
    "--junit": "junit",
    "--markdown": "markdown",
    "--html": "html",
    "--pdf": "pdf",
}


@pytest.mark.parametrize("flag", FILES)
def test_a_file_is_asked_for_by_its_flag(flag: str, tmp_path: Path) -> None:
    chosen = parse(flag, str(tmp_path / "a"))
    assert getattr(chosen.output, FILES[flag]) == tmp_path / "a"
    assert chosen.output.files == ((flag, tmp_path / "a"),)


@pytest.mark.parametrize("flag", FILES)
def test_a_file_in_a_folder_that_is_not_there_is_refused_before_the_run(flag: str) -> None:
    with pytest.raises(
        UsageError, match=rf"{flag} /no/such/a: there is no directory /no/such; create it first"
    ):
        parse(flag, "/no/such/a")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is a directory; name a file in it"):
        parse("--html", str(tmp_path))


def test_two_reports_cannot_share_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    with pytest.raises(UsageError, match=r"--html .*: --json writes the same file"):
        parse("--json", path, "--html", path)


@pytest.mark.parametrize(
    ("words", "shows"), [((), True), (("--no-live",), False), (("--live=false",), False)]
)
def test_the_terminal_may_be_kept_quiet(words: tuple[str, ...], shows: bool) -> None:
    assert parse(*words).output.live is shows


PLACES = {
    "": ("gpu1", 8002, "/metrics"),
    "h:9/m": ("h", 9, "/m"),
    "h:9": ("h", 9, "/metrics"),
    "http://h:9/a/b": ("h", 9, "/a/b"),
    "http://h/m": ("h", 80, "/m"),
    "h/m": ("h", 8002, "/m"),
    "[::1]:9/m": ("::1", 9, "/m"),
}


@pytest.mark.parametrize("url", PLACES)
def test_metrics_are_where_the_url_says_or_on_the_servers_host(url: str) -> None:
    words = ("--metrics-url", url) if url else ()
    host, port, path = PLACES[url]
    found = parse("--collect-metrics", *words).metrics.address("gpu1")
    assert found == MetricsAddress(host=host, port=port, path=path, interval_s=1.0)


def test_how_often_and_what_else_is_looked_at() -> None:
    words = ("--metrics-interval", "250", "--metric", "queue", "--metric", "a{2}")
    address = parse("--collect-metrics", *words).metrics.address("h")
    assert address is not None
    assert (address.interval_s, address.wanted) == (0.25, ("queue", "a{2}"))


def test_nothing_is_looked_at_unless_asked_for() -> None:
    assert parse().metrics.address("h") is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--metrics-url", "h:1/m"), "Must specify --collect-metrics when using the --metrics-url option."),
        (
            ("--metrics-interval", "5"),
            "Must specify --collect-metrics when using the --metrics-interval option.",
        ),
        (("--metric", "a"), "Must specify --collect-metrics when using the --metric option."),
        (("--collect-metrics", "--metrics-url", "https://h/m"), "metrics are read over http only"),
        (
            ("--collect-metrics", "--service-kind", "torchserve"),
            "Server-side metric collection is only supported with Triton client backend.",
        ),
    ],
)
def test_bad_values_of_metrics_have_their_message(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(*words)
    assert message in str(caught.value)
