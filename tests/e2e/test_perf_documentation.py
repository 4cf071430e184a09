"""Command lines as perf_analyzer's documentation has them, against `tpx serve`: `tpx perf` takes them as they
are. Windows are shorter, models are others. Where TPX_TEST_PERF_ANALYZER names perf_analyzer, it is too."""

import csv
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.child import Child, serve, tpx
from tests.serving.frontends.streams import write_streaming_models
from tpx.cli.commands import Exit
from tpx.examples import write

pytestmark = pytest.mark.e2e

QUICK = "-p 150 -s 100000 -r 3"
STEPS = [{"INPUT0": [i + 0.5] * 16, "INPUT1": [1.0] * 16} for i in range(4)]
EXPECTED = [{"OUTPUT0": [i + 1.5] * 16, "OUTPUT1": [i - 0.5] * 16} for i in range(4)]


@dataclass(frozen=True, slots=True)
class Line:
    """A command line, and what it is known by; {grpc} and the like are filled in."""

    words: str
    shows: str
    by_both: bool = True
    """Whether perf_analyzer can do it without a GPU, a minute, or a bug of its own."""

    def __str__(self) -> str:
        return self.words.replace(" ", "_")[:50]


LINES = [
    Line(f"-m add_sub {QUICK}", "Request concurrency: 1"),
    Line(f"-m add_sub --percentile=95 {QUICK}", "Inferences/Second vs. Client p95 Batch Latency"),
    Line(f"-m mnist -b 4 {QUICK}", "  Batch size: 4"),
    Line(f"-m double -b 2 --shape x:7 {QUICK}", "  Batch size: 2"),
    Line(f"-m add_sub --concurrency-range 1:4 -f perf.csv {QUICK}", "Concurrency: 4, throughput: "),
    Line(f"-m add_sub --concurrency-range=4 -f perf.csv {QUICK}", "Request concurrency: 4"),
    Line(f"-m add_sub -i grpc -u {{grpc}} -v --concurrency-range 2 {QUICK}", "  Pass [3] throughput: "),
    Line(f"-m add_sub --request-rate-range=20 -f perf.csv {QUICK} -p 300", "Request Rate: 20 inference"),
    Line(f"-m add_sub --request-intervals=my_intervals.txt {QUICK} -p 300", "Request count: "),
    Line(
        f"-m add_sub --measurement-mode=count_windows --measurement-request-count=20 {QUICK}",
        "  Minimum number of samples in each window: 20",
        by_both=False,
    ),
    Line(f"-m add_sub --input-data data.json -f perf.csv {QUICK}", "Successfully read data for 1 stream"),
    Line(f"-m add_sub --input-data=zero --async --max-threads 2 {QUICK}", "Using asynchronous calls"),
    Line(f"-m add_sub --shared-memory=system -f perf.csv {QUICK}", "Request concurrency: 1"),
    Line(
        f"-m add_sub --collect-metrics --metrics-url={{metrics}}/metrics -f perf.csv --verbose-csv {QUICK}",
        "Request concurrency: 1",
    ),
    Line("-m add_sub --request-count 20", "  Sending 20 benchmark requests"),
    Line(
        "-m add_sub --request-count 20 --warmup-request-count 5",
        "  Sending 5 warmup requests",
        by_both=False,
    ),
    Line("-m add_sub --fixed-schedule --input-data schedule.json", "Request count: 4", by_both=False),
    Line(
        "-m repeat -i grpc -u {grpc} --async --streaming --profile-export-file profile.json --shape IN:4 "
        "--shape DELAY:4 --input-data zero --periodic-concurrency-range 2:6:2 --request-period 2 "
        "--request-parameter max_tokens:256:int",
        "Request count: 6",
        by_both=False,
    ),
    Line(
        f"-m add_sub --binary-search --concurrency-range 1:4:1 -l 1000 {QUICK}",
        "Highest load under",
        by_both=False,
    ),
    Line(
        f"-m accumulator --sequence-length 4 --concurrency-range 2 --input-data zero {QUICK}",
        "Sequence count: ",
    ),
    Line(f"-m add_sub -t 2 -z {QUICK}", "Request concurrency: 2"),
    Line("-m nobody", "failed to get model metadata"),
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    repository = tmp_path_factory.mktemp("models")
    write_streaming_models(repository)
    write(repository, ["add_sub", "mnist", "accumulator"])
    with serve("--model-repository", repository) as child:
        yield child.ready()


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the lines read, as the documentation has it."""
    (tmp_path / "my_intervals.txt").write_text("10000\n20000\n50000\n", encoding="utf-8")
    data = {"data": STEPS, "validation_data": EXPECTED}
    (tmp_path / "data.json").write_text(json.dumps(data), encoding="utf-8")
    timed = [step | {"timestamp": [40 * i]} for i, step in enumerate(STEPS)]
    (tmp_path / "schedule.json").write_text(json.dumps({"data": timed}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def words(line: Line, live: Child) -> list[str]:
    address = "127.0.0.1:{}".format
    ports = {
        "grpc": address(live.port("GRPCInferenceService")),
        "metrics": address(live.port("Metrics Service")),
    }
    found = line.words.format(**ports).split()
    return found if "-u" in found else [*found, "-u", address(live.port("HTTPService"))]


def perf(line: Line, live: Child) -> "subprocess.CompletedProcess[str]":
    return tpx("perf", *words(line, live), cwd=Path.cwd())


@pytest.mark.parametrize("line", LINES, ids=str)
def test_a_documented_command_line_works(line: Line, live: Child) -> None:
    done = perf(line, live)
    assert line.shows in done.stdout + done.stderr
    if "-m nobody" in line.words:
        assert done.returncode == Exit.PERF_FAILED
    else:  # on a busy machine no level may become stable, which is told and is no fault of the page
        assert done.returncode in (Exit.OK, Exit.UNSTABLE), done.stderr
    assert "Traceback" not in done.stderr
    if "-f perf.csv" in line.words:
        rows = list(csv.DictReader(Path("perf.csv").read_text("utf-8").splitlines()))
        assert rows or done.returncode == Exit.UNSTABLE  # the file has stable levels only
        assert all(float(row["Inferences/Second"]) > 0 for row in rows)


def peer(line: Line, live: Child) -> "subprocess.CompletedProcess[str]":
    program = os.environ.get("TPX_TEST_PERF_ANALYZER")
    if not program:
        pytest.skip("no perf_analyzer: set TPX_TEST_PERF_ANALYZER to its path")
    return subprocess.run(
        [program, *words(line, live)], capture_output=True, text=True, timeout=60, check=False
    )


def skeleton(text: str) -> list[str]:
    """The lines without their figures."""
    return [re.sub(r"\d+(\.\d+)?(e\+\d+)?", "N", line).rstrip() for line in text.splitlines() if line.strip()]


def missing(wanted: Sequence[str], found: Sequence[str]) -> list[str]:
    """The lines that do not come in that order; tpx has more behind its levels."""
    rest = iter(found)
    return [line for line in wanted if not any(line == other for other in rest)]


@pytest.mark.parametrize("line", [line for line in LINES if line.by_both], ids=str)
def test_perf_analyzer_says_the_same(line: Line, live: Child) -> None:
    theirs = peer(line, live)
    their_csv = Path("perf.csv").read_text("utf-8").splitlines()[:1] if Path("perf.csv").exists() else []
    Path("perf.csv").unlink(missing_ok=True)
    ours = perf(line, live)
    our_csv = Path("perf.csv").read_text("utf-8").splitlines()[:1] if Path("perf.csv").exists() else []
    assert ours.returncode == theirs.returncode
    assert our_csv == their_csv
    assert missing(skeleton(theirs.stdout), skeleton(ours.stdout)) == []
