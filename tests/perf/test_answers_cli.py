"""Answers from the command line, over real connections."""

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.perf.servers import Behaviour, grpc_server, http_server
from tpx.cli.perf import main
from tpx.perf.options.words import read_words

QUICK = ["-m", "net", "--stability", "ci", "-p", "60", "-s", "100"]


def test_the_highest_load_under_an_objective_is_answered_with_0(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.json"
    words = [*QUICK, "--slo", "p50<5s", "--concurrency-range", "1:2", "--json", str(file)]
    with http_server(Behaviour()) as url:
        assert main([*words, "-u", url]) == 0
    out, _ = capfd.readouterr()
    assert "SLO p50<5s: met up to concurrency 2, " in out
    assert "  concurrency 1: p50<5s met: " in out
    document = json.loads(file.read_text())
    assert document["answer"] == document["best"] == {"mode": "concurrency", "value": 2}
    assert document["slo"] == {"objectives": ["p50<5s"], "confidence": 0.99, "ok": True}
    level = document["levels"][0]
    assert level["slo"][0]["outcome"] == "met"
    assert level["throughput"]["ci_low"] < level["throughput"]["value"] < level["throughput"]["ci_high"]
    assert sum(map(int, level["batches"]["requests"].split())) == level["requests"]
    assert sum(int(n) for row in level["batches"]["histogram"] for n in row.split()) == level["requests"]
    assert set(level["latency_ci_us"]) == {"mean", "p50", "p90", "p95", "p99", "p99_9"}


def test_an_objective_that_no_load_meets_is_4(capfd: pytest.CaptureFixture[str]) -> None:
    with http_server(Behaviour(delay_s=lambda _: 0.005)) as url:
        assert main([*QUICK, "--slo", "p50<1ms", "-u", url]) == 4
    out, _ = capfd.readouterr()
    assert "SLO p50<1ms: no measured load meets it.\n  concurrency 1: p50<1ms violated: " in out


def saved(path: Path, delay_s: float) -> str:
    with http_server(Behaviour(delay_s=lambda _: delay_s)) as url:
        assert main(["-m", "net", "--request-count", "60", "-u", url, "--json", str(path)]) == 0
    return str(path)


def test_a_run_slower_than_three_of_a_baseline_is_5_and_two_runs_are_7(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fast, slow = saved(tmp_path / "0.json", 0.002), saved(tmp_path / "b.json", 0.02)
    # three runs on a quiet machine: how much real ones differ on a busy one is not for a test to say
    baseline = [fast, *(str(shutil.copy(fast, tmp_path / f"{number}.json")) for number in (1, 2))]
    capfd.readouterr()
    names = {"--json": "c.json", "--junit": "c.xml", "--markdown": "c.md"}
    files = [word for flag, name in names.items() for word in (flag, str(tmp_path / name))]
    assert main(["compare", slow, "--baseline", *baseline, *files]) == 5
    out, err = capfd.readouterr()
    assert err == ""
    assert "throughput" in out
    assert "worse" in out
    assert int(ElementTree.parse(tmp_path / "c.xml").getroot().get("failures", "0")) >= 1
    assert f"against 3 runs ({fast}, ".replace("_", "\\_") in (tmp_path / "c.md").read_text("utf-8")
    found: list[dict[str, Any]] = json.loads((tmp_path / "c.json").read_text())["compare"]
    assert {d["figure"]: d["finding"] for d in found}["p50"] == "worse"
    assert main(["compare", "--baseline", *baseline, "--", slow]) == 5
    capfd.readouterr()
    # one run on each side, however different, and a file against itself
    for words in ([fast, slow], [fast, fast]):
        assert main(["compare", *words]) == 7
        assert capfd.readouterr().out.startswith("Undecided: one run, or two, do not tell how runs differ")
        assert main(["compare", *words, "--undecided", "pass"]) == 0
        capfd.readouterr()
    assert main(["compare", fast, "--baseline", fast, fast]) == 99
    assert f"{fast} is given twice" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["one.json"], "tpx perf compare takes two runs, or some after --baseline RUN RUN RUN; got 1"),
        (["/no/a.json", "/no/b.json"], "cannot read /no/a.json: No such file or directory"),
        (["a", "b", "--foo"], "Invalid long option '--foo'"),
    ],
)
def test_compare_says_what_is_wrong(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words]) == 99
    assert capfd.readouterr().err.startswith(f"Error: {message}")


def test_ab_takes_all_words_up_to_the_next_option() -> None:
    for words in (["--ab", "a:1", "b:2", "-m", "net"], ["-m", "net", "--ab", "a:1", "--ab", "b:2"]):
        found = read_words(words).config
        assert (found.comparing.ab, found.target.model) == (("a:1", "b:2"), "net")


def test_ab_tells_a_slower_server_from_its_base(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ab.json"
    fast, slow = Behaviour(delay_s=lambda _: 0.001), Behaviour(delay_s=lambda _: 0.05)
    with http_server(fast) as one, http_server(slow) as two:
        words = ["-m", "net", "--ab", one, two, "--ab-blocks", "5", "--request-count", "10"]
        assert main([*words, "--json", str(file)]) == 5
    out, err = capfd.readouterr()
    assert f"{two} against {one}:\n" in out
    assert "concurrency 1: 5 blocks of each of 2 servers" in err
    document = json.loads(file.read_text())
    assert document["servers"] == [one, two]
    assert len(document["rounds"][0]["blocks"]) == 5
    (found,) = document["ab"]
    # one pause of the machine changes throughput and p99
    assert {d["figure"]: d["finding"] for d in found["differences"]}["p50"] == "worse"


@pytest.mark.parametrize(("protocol", "library"), [("http", "httpx "), ("grpc", "grpcio ")])
def test_both_clients_are_compared_on_one_server(
    protocol: str, library: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ab.json"
    server = {"http": http_server, "grpc": grpc_server}[protocol]
    with server(Behaviour(delay_s=lambda _: 0.01)) as url:
        words = ["-m", "net", "-i", protocol, "-u", url, "--ab-client", "--ab-blocks", "4"]
        # what a busy machine adds is far less than four times the delay
        status = main([*words, "--request-count", "5", "--min-effect", "400%", "--json", str(file)])
    out, err = capfd.readouterr()
    document = json.loads(file.read_text())
    base, other = document["clients"]
    assert base == "tpx"
    assert other.startswith(library)
    assert f"{other} against tpx:\n" in out
    assert "concurrency 1: 4 blocks of each of 2 clients" in err
    (found,) = document["ab"]
    assert found["client"] == other
    assert {d["finding"] for d in found["differences"]} <= {"same", "undecided"}
    assert status in (0, 7)


def test_ab_refuses_workers_that_cannot_share_the_load(capfd: pytest.CaptureFixture[str]) -> None:
    with http_server(Behaviour()) as one, http_server(Behaviour()) as two:
        words = ["-m", "net", "--ab", one, two, "--workers", "2", "--poll", "busy"]
        assert main([*words, "--request-count", "5"]) == 99
    assert "--workers 2: --poll busy polls in one process" in capfd.readouterr().err


def test_ab_writes_what_ci_reads_and_shows_every_block_when_verbose(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    junit, markdown = tmp_path / "ab.xml", tmp_path / "ab.md"
    fast, slow = Behaviour(delay_s=lambda _: 0.001), Behaviour(delay_s=lambda _: 0.05)
    files = ["--junit", str(junit), "--markdown", str(markdown)]
    with http_server(fast) as one, http_server(slow) as two:
        words = ["-m", "net", "--ab", one, two, "--ab-blocks", "4", "--request-count", "10"]
        assert main([*words, "-v", "--alpha", "0.06", *files]) == 5
    blocks = [line for line in capfd.readouterr().err.splitlines() if line.startswith("  round ")]
    assert len(blocks) == 8
    assert blocks[0].startswith(f"  round 1, {one}: throughput ")
    suite = ElementTree.parse(junit).getroot()
    assert {case.get("classname") for case in suite} == {f"{two} against {one}"}
    assert int(suite.get("failures", "0")) >= 2
    assert markdown.read_text("utf-8").startswith("### \u274c ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-u", "c:1"], "-u names a server"),
        (["-f", "a.csv"], "-f applies to levels of one server"),
        (["--html", "a.html"], "--html applies to levels of one server"),
        (["--jsonl", "a.jsonl"], "--jsonl applies to levels of one server"),
        (["--collect-metrics"], "--collect-metrics applies to levels of one server"),
        (["--dry-run"], "--dry-run looks at one server"),
        (["--require-stable"], "--require-stable has no say"),
        (["-s", "5"], "-s has no say"),
        (["-r", "3"], "-r has no say"),
        (["-l", "20"], "-l applies to levels of one server"),
        (["--percentile", "99"], "--percentile applies to levels of one server"),
    ],
)
def test_ab_refuses_what_says_nothing_of_a_comparison(
    words: list[str], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "net", "--ab", "a:1", "b:1", *words]) == 99
    assert capfd.readouterr().err.startswith(f"Error: --ab: {told}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ab"], "Missing value for option '--ab'"),
        (["--ab", "127.0.0.1:9", "127.0.0.1:9"], "cannot connect to 127.0.0.1:9"),
        (["--ab-client", "--ab", "a:1", "b:1"], "--ab compares servers, --ab-client the clients"),
        (["--ab-client", "--client", "library"], "leave out --client and inprocess"),
        (["--ab-client", "--proxy", "p:1"], "tpx's own client has neither HTTP/2 nor proxies"),
        (["--ab-client", "--slo", "p99<1s"], "--ab-client compares clients at given loads"),
    ],
)
def test_ab_says_what_is_wrong(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "net", *words]) == 99
    assert message in capfd.readouterr().err
