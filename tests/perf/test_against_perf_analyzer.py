"""The same commands by perf_analyzer and by us against the same server: the same lines, the same columns."""

import csv
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.live import Live, serving
from tests.serving.onnx_files import accumulator, doubling, write_model
from tpx.argv import from_argv
from tpx.cli.perf import main
from tpx.serving.options import ServeConfig

pytestmark = pytest.mark.e2e

QUICK = ("-p", "250", "-s", "100000", "-r", "3")

CASES = {
    "concurrency": ("-m", "double", "--concurrency-range", "1:2"),
    "verbose": ("-m", "double", "-v", "--verbose-csv"),
    "percentile": ("-m", "double", "-v", "--percentile", "97", "--verbose-csv"),
    "batch": ("-m", "double", "-b", "4"),
    "grpc": ("-m", "double", "-i", "grpc", "-v"),
    "counted": ("-m", "double", "--request-count", "20"),
    "count windows": ("-m", "double", "--measurement-mode", "count_windows"),
    "rate": ("-m", "double", "--request-rate-range", "100:200:100", "--request-distribution", "poisson"),
    "sequences": ("-m", "running", "--concurrency-range", "2"),
    "ensemble": ("-m", "outer", "--concurrency-range", "1"),
    "cache": ("-m", "cached"),
    "streamed": ("-m", "double", "-i", "grpc", "--streaming"),
    "metrics": ("-m", "double", "--verbose-csv", "--collect-metrics"),
}
NEWER = "per second\n", "per seconds\n"
"""perf_analyzer has said both of a rate; we say what the newer ones do."""


NOISE = ("Server average accounted time", "Avg send request rate", "[WARNING]")
"""What both print on a machine that is busy with something else."""


def perf_analyzer() -> str:
    found = os.environ.get("TPX_TEST_PERF_ANALYZER") or shutil.which("perf_analyzer")
    if found is None:
        pytest.skip("no perf_analyzer: set TPX_TEST_PERF_ANALYZER to its path, or put it on the PATH")
    return found


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    perf_analyzer()
    repository: Path = tmp_path_factory.mktemp("models")
    write_model(repository, "double", doubling(), "max_batch_size: 8 dynamic_batching { }")
    write_model(repository, "cached", doubling(), "max_batch_size: 8 response_cache { enable: true }")
    controls = (
        "control_input [ { name: 'START' control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } },"
        " { name: 'READY' control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [0, 1] } },"
        " { name: 'CORRID' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } ]"
        " state { input_name: 'state_in' output_name: 'state_out' data_type: TYPE_FP32 dims: [ 1 ] }"
    )
    write_model(repository, "running", accumulator(), f"max_batch_size: 8 sequence_batching {{ {controls} }}")
    write_model(repository, "again", doubling(), "max_batch_size: 8")
    steps = [("double", "x", "middle"), ("again", "middle", "out")]
    text = ", ".join(
        f"{{ model_name: '{name}' model_version: -1 input_map {{ key: 'x' value: '{source}' }} "
        f"output_map {{ key: 'y' value: '{target}' }} }}"
        for name, source, target in steps
    )
    tensor = "data_type: TYPE_FP32 dims: [ 2 ]"
    (repository / "outer" / "1").mkdir(parents=True)
    (repository / "outer" / "config.pbtxt").write_text(
        f"platform: 'ensemble' max_batch_size: 8 input {{ name: 'x' {tensor} }} "
        f"output {{ name: 'out' {tensor} }} ensemble_scheduling {{ step [ {text} ] }}"
    )
    flags = ["--model-repository", str(repository), "--cache-config", "local,size=1000000"]
    with serving(repository, cache_config=from_argv(ServeConfig, flags).repository.cache_config) as server:
        yield server


def command(live: Live, case: str, csv_path: Path) -> list[str]:
    words = CASES[case]
    protocol = "GRPCInferenceService" if "grpc" in words else "HTTPService"
    where = ["-u", f"127.0.0.1:{live.ports[protocol]}", "-f", str(csv_path)]
    if "--collect-metrics" in words:
        where += ["--metrics-url", f"127.0.0.1:{live.ports['Metrics Service']}/metrics"]
    return [*words, *QUICK, *where]


def outline(text: str) -> list[str]:
    """Lines with every number the same, without what perf_analyzer does not print."""
    lines, ours = [], False
    for line in text.replace(NEWER[1], NEWER[0]).splitlines():
        was, ours = ours, line.startswith("  tpx adds:") or (ours and line.startswith("    "))
        # the blank line behind ours is ours, too
        if not ours and not (was and not line):
            lines.append(re.sub(r"\d[\d.e+]*", "#", line))
    return [line for line in lines if not line.strip().startswith(NOISE)]


@pytest.mark.parametrize("case", CASES)
def test_text_and_columns_are_those_of_perf_analyzer(
    live: Live, tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    # relative names: perf_analyzer puts the names of an ensemble's models before the whole path
    words = command(live, case, Path("a.csv"))
    done = subprocess.run(
        [perf_analyzer(), *words], cwd=theirs, capture_output=True, text=True, timeout=60, check=True
    )
    assert main(command(live, case, ours / "a.csv")) == 0
    assert outline(capfd.readouterr().out) == outline(done.stdout)
    assert sorted(p.name for p in ours.iterdir()) == sorted(p.name for p in theirs.iterdir())
    for path in theirs.iterdir():
        their_rows = list(csv.reader(path.read_text().splitlines()))
        our_rows = list(csv.reader((ours / path.name).read_text().splitlines()))
        assert our_rows[0] == their_rows[0]
        assert sorted(row[0] for row in our_rows[1:]) == sorted(row[0] for row in their_rows[1:])


def shape(value: object) -> object:
    """Members and kinds of values, of the first of many."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items() if key != "tpx"}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


@pytest.mark.parametrize("case", ["concurrency", "grpc", "rate", "sequences"])
def test_the_profile_export_has_the_same_members(live: Live, tmp_path: Path, case: str) -> None:
    exports = [tmp_path / "theirs.json", tmp_path / "ours.json"]
    theirs, ours = (
        [*command(live, case, tmp_path / "a.csv"), "--profile-export-file", str(p)] for p in exports
    )
    subprocess.run([perf_analyzer(), *theirs], capture_output=True, timeout=60, check=True)
    assert main(ours) == 0
    documents = [json.loads(path.read_bytes()) for path in exports]
    assert list(documents[1]) == [*documents[0], "tpx"]
    assert shape(documents[1]) == shape(documents[0])
    assert len(documents[1]["experiments"]) == len(documents[0]["experiments"])
