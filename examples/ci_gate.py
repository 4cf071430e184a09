"""Fail a CI job when a model misses its objective (exit 4) or is slower than the baseline (exit 5).

The baseline is a directory with several runs, because one run does not tell how runs of the same thing
differ; with fewer than three, or if they differ by much, the comparison is undecided (exit 7).

    pip install 'tpx[onnx]'
    tpx quickstart models --models mnist
    python examples/ci_gate.py models mnist --slo 'p99<50ms' --baseline baseline

A run with too small a baseline adds to it; keep the directory in the job's cache.
"""

import argparse
import sys
from pathlib import Path

import tpx

MISSED, REGRESSED, UNDECIDED = 4, 5, 7
FEWEST_RUNS = 3


def gate(words: argparse.Namespace) -> int:
    """Measure, judge, and leave a report; return the exit status."""
    runs = [measure(words) for _ in range(words.runs)]
    runs[-1].to_html(words.report)
    print(runs[-1].verdict)
    if not all(run.meets_slo for run in runs):
        return MISSED
    baseline = sorted(words.baseline.glob("*.json"))
    if len(baseline) < FEWEST_RUNS:
        words.baseline.mkdir(parents=True, exist_ok=True)
        for number, run in enumerate(runs, len(baseline) + 1):
            (words.baseline / f"{number}.json").write_text(run.to_json(), encoding="utf-8")
        print(f"wrote {len(runs)} runs to {words.baseline}")
        return 0
    comparison = tpx.compare(baseline, runs, min_effect=words.min_effect)
    print(f"against {len(baseline)} runs in {words.baseline}: {comparison.verdict}")
    if comparison.verdict == "undecided":
        print(f"about {comparison.more_s:.0f} s more per side would decide")
        return UNDECIDED if words.undecided == "fail" else 0
    return REGRESSED if comparison.verdict == "worse" else 0


def measure(words: argparse.Namespace) -> tpx.PerfRun:
    """Serve and measure the model once; a new server each time, because servers differ, too."""
    with tpx.serve(words.repository, process=True) as server:
        return tpx.measure(
            server,
            words.model,
            concurrency=words.concurrency,
            slo=[words.slo],
            measurement_interval=words.interval_ms,
            max_trials=words.windows,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("repository", type=Path)
    parser.add_argument("model")
    parser.add_argument("--slo", default="p99<50ms")
    parser.add_argument("--baseline", type=Path, default=Path("baseline"))
    parser.add_argument("--runs", type=int, default=3, help="runs to measure")
    parser.add_argument("--report", type=Path, default=Path("report.html"))
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--interval-ms", type=int, default=1000, help="length of a measurement window")
    parser.add_argument("--windows", type=int, default=10, help="windows until a level counts as unstable")
    parser.add_argument("--min-effect", type=float, default=0.1, help="smaller differences do not count")
    parser.add_argument("--undecided", choices=("pass", "fail"), default="fail")
    return gate(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
