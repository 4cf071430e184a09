"""Fail a CI job when a model misses its objective (exit 4) or is slower than the baseline (exit 5).

    pip install 'tpx[onnx]'
    tpx quickstart models --models mnist
    python examples/ci_gate.py models mnist --slo 'p99<50ms' --baseline baseline.json

The first run writes the baseline; keep it in the job's cache.
"""

import argparse
import sys
from pathlib import Path

import tpx

MISSED, REGRESSED = 4, 5


def gate(words: argparse.Namespace) -> int:
    """Measure, judge, and leave a report; return the exit status."""
    with tpx.serve(words.repository, process=True) as server:
        run = tpx.measure(
            server,
            words.model,
            concurrency=words.concurrency,
            slo=[words.slo],
            measurement_interval=words.interval_ms,
            max_trials=words.windows,
        )
    run.to_html(words.report)
    print(run.verdict)
    if not run.meets_slo:
        return MISSED
    if not words.baseline.exists():
        words.baseline.write_text(run.to_json(), encoding="utf-8")
        print(f"wrote {words.baseline}")
        return 0
    comparison = tpx.compare(words.baseline, run, min_effect=words.min_effect)
    print(f"against {words.baseline}: {comparison.verdict}")
    return REGRESSED if comparison.verdict == "worse" else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("repository", type=Path)
    parser.add_argument("model")
    parser.add_argument("--slo", default="p99<50ms")
    parser.add_argument("--baseline", type=Path, default=Path("baseline.json"))
    parser.add_argument("--report", type=Path, default=Path("report.html"))
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--interval-ms", type=int, default=1000, help="length of a measurement window")
    parser.add_argument("--windows", type=int, default=10, help="windows until a level counts as unstable")
    parser.add_argument("--min-effect", type=float, default=0.1, help="smaller differences do not count")
    return gate(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
