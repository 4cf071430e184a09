"""Find the configuration that serves a model best within a latency limit, and show it as config.pbtxt.

pip install 'tpx[onnx]'
tpx quickstart models --models mnist
python examples/find_best_configuration.py models mnist --budget 2m --max-p99-ms 20
"""

import argparse
from pathlib import Path

import tpx


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("repository", type=Path)
    parser.add_argument("model")
    parser.add_argument("--budget", default="2m", help="time for the search")
    parser.add_argument("--max-p99-ms", type=float, default=20)
    parser.add_argument("--interval-ms", type=int, default=1000, help="length of a measurement window")
    parser.add_argument("--final-rounds", type=int, default=5, help="repetitions of the best and the default")
    parser.add_argument("--report", type=Path, default=Path("analysis.html"))
    words = parser.parse_args()
    found = tpx.analyze(
        words.model,
        repository=words.repository,
        budget=words.budget,
        constraints=f"perf_latency_p99<={words.max_p99_ms}",
        measurement_interval=words.interval_ms,
        final_rounds=words.final_rounds,
    )
    found.to_html(words.report)
    print(found.verdict)
    best = found.verdicts[0].best
    if best is not None:
        print(f"\n# config.pbtxt of {best.name}\n{best.run.configuration.text}")
    print(f"Report: {words.report}. Write it into the repository: tpx analyze apply -e {found.directory}")


if __name__ == "__main__":
    main()
