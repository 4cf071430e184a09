"""One configuration has one throughput, whichever output of a run one reads."""

import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.analyzer.simulated import Noise, SimulatedServer, Surface
from tests.report.reading import pdf_text, read
from tpx.analyzer.results.run import Run
from tpx.analyzer.verdict import judge
from tpx.cli.analyze import main
from tpx.report.digits import rounded

Replay = Callable[..., Run]
NUMBER = r"([0-9][0-9,]*\.?[0-9]*)"
NOISY = Noise(spread=0.04, drift=0.1)


def texts_of(place: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield every output that tells about a configuration in prose, by its name."""
    yield "page", read((place / "report.html").read_text(encoding="utf-8")).text
    yield "drawings", " ".join(re.findall(r"<title>([^<]*)</title>", (place / "report.html").read_text()))
    detail = place / "reports" / "detailed" / name / "detailed_report.html"
    yield "detail", read(detail.read_text(encoding="utf-8")).text
    yield "pdf", pdf_text(place / "report.pdf")
    for ending in ("md", "xml"):
        yield ending, (place / f"report.{ending}").read_text(encoding="utf-8")


def throughputs(place: Path, name: str, load: int, compared: str) -> dict[str, list[str]]:
    """Find all throughputs of a configuration under a load, by output."""
    found: dict[str, list[str]] = {}
    at = f"{name} at concurrency {load}: {NUMBER} infer/s"
    for output, text in texts_of(place, name):
        words = " ".join(text.replace("`", "").split())
        found[output] = re.findall(at, words) + re.findall(rf"{name} gives {NUMBER} infer/s", words)
        found[output] += re.findall(rf"Number 1 of [0-9]+: {NUMBER} infer/s", words)
    page = read((place / "report.html").read_text(encoding="utf-8"))
    for table in ("model-0-configurations", "model-0-measurements"):
        head, *rows = page.rows[table]
        where = head.index("Concurrency"), head.index("infer/s")
        cells = [row[where[1]] for row in rows if name in row[0] and row[where[0]] == str(load)]
        found[table] = [match for cell in cells for match in re.findall(f"^{NUMBER}", cell)]
    with (place / "results" / "metrics-model-inference.csv").open(encoding="utf-8") as file:
        rows_of_csv = list(csv.DictReader(file))
    found["csv"] = [
        row["Throughput (infer/sec)"]
        for row in rows_of_csv
        if row["Model Config Path"] == name and row["Concurrency"] == str(load)
    ]
    (told,) = json.loads((place / "report.json").read_text(encoding="utf-8"))["models"]
    (own,) = (each for each in told["configurations"] if each["name"] == name)
    found["json"] = [str(own["figures"]["perf_throughput"])]
    found["json"] += [str(m["perf_throughput"]) for m in own["measurements"] if m["load_value"] == load]
    found["compare"] = re.findall(rf"{NUMBER} infer/s", compared)
    return found


@pytest.mark.slow
def test_every_output_of_a_run_shows_the_same_throughput_of_what_it_recommends(
    replay: Replay, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = SimulatedServer(Surface(host_ms=9.0, device_ms=2.0, item_ms=0.0), noise=NOISY, seed=4)
    run = replay(server.measure)
    best = judge(run.models[0], run.started.goals).best
    assert best is not None
    assert best.settled is not None
    load = best.figures.load
    (searched,) = (m for m in best.run.measurements if m.load == load)
    assert rounded(searched.throughput) != rounded(best.figures.throughput)

    assert main(["report", "-e", str(tmp_path), "-o", "html,pdf,csv,markdown,json,junit"]) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 7
    found = throughputs(tmp_path, best.name, load.value, capsys.readouterr().out)

    assert [output for output, figures in found.items() if not figures] == []
    with (tmp_path / "results" / "metrics-model-inference.csv").open(encoding="utf-8") as file:
        row = next(
            r
            for r in csv.DictReader(file)
            if (r["Model Config Path"], r["Concurrency"]) == (best.name, str(load.value))
        )
    assert best.figures.p99_ns is not None
    assert rounded(float(row["p99 Latency (ms)"])) == rounded(best.figures.p99_ns / 1e6)
    shown = {rounded(float(figure.replace(",", ""))) for figures in found.values() for figure in figures}
    assert shown == {rounded(best.figures.throughput)}, found
