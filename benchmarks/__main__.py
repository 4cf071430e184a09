"""`python -m benchmarks`: run the benches that are named, or all; print tables, ratios and goals."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from time import monotonic

from benchmarks import tables
from benchmarks.goals import goals
from benchmarks.machine import Machine, this_machine, wait_for_quiet
from benchmarks.models import ModelStore
from benchmarks.peers import Peers
from benchmarks.results import Cell
from benchmarks.setting import Setting
from tpx.errors import MeasurementError

BENCHES = (
    "light",
    "floor",
    "python_backend",
    "ensemble",
    "sequences",
    "perf_analyzer",
    "load_generators",
    "one_processor",
    "few_in_flight",
    "agreement",
    "alexnet",
    "pytorch",
    "start",
)
LONG = ("analyzers", "dali", "gpu", "language", "language_servers", "scaling", "token_clients")
"""Run only where they are named: they take long, or need what `make test` does not install."""
CACHE = Path(".cache")
PEERS_VARIABLE = "TPX_BENCH_PEERS"
FIGURES = Path(__file__).parent / "figures.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def main() -> int:
    """Run what the command line names; returns the exit status, 0 whether goals are met or not."""
    options = _options()
    peers = Peers(Path(os.environ.get(PEERS_VARIABLE) or CACHE / "peers"))
    output = CACHE / "bench"
    setting = Setting(
        peers=peers,
        models=ModelStore((output / "models").absolute()),
        work=(output / "work").absolute(),
        rounds=options.rounds,
        seconds=options.seconds,
        match=options.match,
    )
    wait_for_quiet(options.wait)
    machine, start = this_machine(), monotonic()
    print(f"{machine}\n", flush=True)
    cells: list[Cell] = []
    printed: list[str] = []
    names = options.bench or BENCHES
    for name in names:
        cells += _run(name, setting, printed)
    printed.insert(0, tables.goal_table([goal for goal in goals() if goal.bench in names], cells))
    print(printed[0])
    minutes = (monotonic() - start) / 60
    how = f"{options.rounds} rounds of {options.seconds} s, {minutes:.0f} minutes in all"
    page = tables.page(machine, how, printed)
    _write(output, machine, cells, page)
    if options.write:
        _write_figures(page)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = ", ".join((*BENCHES, *LONG))
    parser.add_argument("bench", nargs="*", help=f"what to run: {known}; default: all but {', '.join(LONG)}")
    parser.add_argument("--rounds", type=int, default=3, help="samples of every side of a cell (3)")
    parser.add_argument("--seconds", type=int, default=2, help="how long one sample is taken (2)")
    parser.add_argument("--match", default="", help="only cells whose name contains this text")
    parser.add_argument(
        "--wait",
        type=float,
        default=0,
        metavar="SECONDS",
        help="wait at most so long for the machine to be idle",
    )
    parser.add_argument("--write", action="store_true", help="write the figures into benchmarks/figures.md")
    options = parser.parse_args()
    unknown = set(options.bench) - {*BENCHES, *LONG}
    if unknown or options.rounds < 1 or options.seconds < 1:
        parser.error(f"benches are {known}; rounds and seconds are at least 1")
    return options


def _run(name: str, setting: Setting, printed: list[str]) -> list[Cell]:
    """Run one bench, print its table, and append that to `printed`."""
    bench = import_module(f"benchmarks.benches.{name}")
    print(f"{bench.TITLE} ...", file=sys.stderr, flush=True)
    try:
        cells: list[Cell] = bench.run(setting)
    except MeasurementError as exc:
        text = f"### {bench.TITLE}\n\nNot measured: {exc}"
        cells = []
    else:
        if not cells:
            return []
        text = tables.bench_table(bench.TITLE, bench.SHOWN, cells)
    printed.append(text)
    print(text + "\n", flush=True)
    return cells


def _write(output: Path, machine: Machine, cells: Sequence[Cell], page: str) -> None:
    document = {"machine": asdict(machine), "cells": [cell.as_json() for cell in cells]}
    (output / "results.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    (output / "results.md").write_text(page, encoding="utf-8")
    print(f"\nAlso in {output}/results.json and {output}/results.md")


def _write_figures(page: str) -> None:
    text = FIGURES.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise SystemExit(f"{FIGURES} has no '{BEGIN}' and '{END}' between which figures go")
    FIGURES.write_text(f"{head}{begin}\n{page}{end}{tail}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
