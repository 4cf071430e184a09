"""`tpx analyze` and Model Analyzer, asked the same: which configuration of a model serves best on a server?

Both read the same YAML file, and both leave the same table of what they measured.
"""

import csv
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import yaml

from benchmarks.models import Served
from benchmarks.peers import Peers
from benchmarks.processes import Process, last_lines
from benchmarks.results import Sample
from benchmarks.servers import Server
from tpx.errors import MeasurementError

TIMEOUT_S = 3600.0
SPACE = {
    "run_config_search_max_instance_count": 5,
    "run_config_search_max_concurrency": 1024,
}
"""Model Analyzer's defaults, and ours; the load is doubled until throughput stops growing."""
TABLE = Path("results") / "metrics-model-inference.csv"
DEFAULT = "_config_default"

Rows = Sequence[Mapping[str, str]]
"""Of the table: the best configuration first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A configuration with the load under which it was found best."""

    name: str
    config: str
    """Its config.pbtxt, without the name, which is that of its folder."""
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an analyzer says, and what it took."""

    default: Variant
    best: Variant
    figures: Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The configuration that an analyzer recommends, and the throughput it promises over the default's."""

    best: str
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Analyzer:
    """A program: how it is called, and where it says what it recommends."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    find: Callable[[Path, Rows], Finding]
    """Takes the folder of its results and its table."""

    def ask(self, server: Server, served: Served, folder: Path) -> Answer:
        """Let it search once; all that it writes is in the folder, which is made anew.

        Raises MeasurementError where it fails or measures no configuration.
        """
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        question = folder / "question.yaml"
        question.write_text(yaml.safe_dump(_question(server, served, folder)), encoding="utf-8")
        argv = [word.format(folder=folder, question=question) for word in self.argv]
        start = perf_counter()
        with Process(argv, folder / "output.log", env=self.env) as process:
            status = process.wait(TIMEOUT_S)
            wall_s = perf_counter() - start
            if status:
                raise MeasurementError(f"{self.name} ends with {status}: {last_lines(process.output)}")
        return self._read(folder, served, wall_s)

    def _read(self, folder: Path, served: Served, wall_s: float) -> Answer:
        with (folder / TABLE).open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["Model"]]
        if not rows:
            raise MeasurementError(f"{self.name} measured no configuration")
        found = self.find(folder, rows)
        figures = {
            "wall_s": wall_s,
            "measurements": len(rows),
            "configurations": len({row["Model Config Path"] for row in rows}),
            "gain": found.gain,
        }
        default = _variant(folder, _best_row(rows, served.name + DEFAULT))
        return Answer(default=default, best=_variant(folder, _best_row(rows, found.best)), figures=figures)


def tpx_analyze(flags: Sequence[str]) -> Analyzer:
    """Our own, with these flags beside the question."""
    program = (sys.executable, "-m", "tpx", "analyze", "profile", "-f", "{question}")
    return Analyzer(
        name="tpx",
        argv=(*program, "--json", "{folder}/report.json", *flags),
        env={},
        find=_found_by_tpx,
    )


def model_analyzer(peers: Peers) -> Analyzer:
    """The real one, with perf_analyzer 2.51. Raises MeasurementError where one of them cannot be had."""
    return Analyzer(
        name="model_analyzer",
        argv=(str(peers.model_analyzer()), "profile", "-f", "{question}"),
        env=peers.model_analyzer_env(),
        find=_found_by_model_analyzer,
    )


def _question(server: Server, served: Served, folder: Path) -> Mapping[str, object]:
    return {
        "profile_models": {served.name: {"cpu_only": True}},
        "triton_launch_mode": "remote",
        "triton_http_endpoint": f"127.0.0.1:{server.http_port}",
        "triton_grpc_endpoint": f"127.0.0.1:{server.grpc_port}",
        "triton_metrics_url": f"http://127.0.0.1:{server.metrics_port}/metrics",
        "export_path": str(folder),
        "checkpoint_directory": str(folder / "checkpoints"),
        "output_model_repository_path": str(folder / "models"),
        "override_output_model_repository": True,
        **SPACE,
    }


def _found_by_tpx(folder: Path, _: Rows) -> Finding:
    """Its gain is that of the final rounds, not of the search."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))["models"][0]
    if not report["recommended"]:
        raise MeasurementError(f"tpx analyze recommends nothing: {report['verdict']}")
    return Finding(best=report["recommended"], gain=1 + (report["gain_percent"] or 0) / 100)


def _found_by_model_analyzer(_: Path, rows: Rows) -> Finding:
    """As its report: the best measurement of all over the best of the default."""
    best = rows[0]["Model Config Path"]
    default = _best_row(rows, best.rpartition("_config_")[0] + DEFAULT)
    return Finding(best=best, gain=_throughput(_best_row(rows, best)) / _throughput(default))


def _best_row(rows: Rows, variant: str) -> Mapping[str, str]:
    found = [row for row in rows if row["Model Config Path"] == variant]
    if not found:
        raise MeasurementError(f"the table of measurements has no '{variant}'")
    return max(found, key=_throughput)


def _throughput(row: Mapping[str, str]) -> float:
    return float(row["Throughput (infer/sec)"])


def _variant(folder: Path, row: Mapping[str, str]) -> Variant:
    name = row["Model Config Path"]
    config = (folder / "models" / name / "config.pbtxt").read_text(encoding="utf-8")
    nameless = re.sub(r'^name: ".*"\n', "", config, flags=re.MULTILINE)
    return Variant(name=name, config=nameless, concurrency=int(row["Concurrency"]))
