"""`tpx perf compare A.json B.json`: what changed, and an exit status for continuous integration."""

import json
from collections.abc import Sequence
from pathlib import Path

from tpx.cli.comparing import PerfCompareConfig, report_comparison
from tpx.errors import UsageError
from tpx.options import from_argv
from tpx.perf.answers.compare import compare, difference_json, read_levels
from tpx.perf.report.comparison import Against, Compared


def main(argv: Sequence[str]) -> int:
    """Print what changed; 5 where something became worse, else 0. Raises UsageError."""
    config = from_argv(PerfCompareConfig, argv)
    before, after = (read_levels(_document(path), str(path)) for path in config.runs)
    comparison = compare(before, after, config.comparison.strictness)
    if not comparison.differences:
        left_out = "; ".join(comparison.left_out)
        raise UsageError(f"{config.runs[0]} and {config.runs[1]} have no load to compare ({left_out})")
    pair = Against(
        title=f"{config.runs[1]} against {config.runs[0]}",
        differences=comparison.differences,
        left_out=comparison.left_out,
    )
    document = {"schema": 1, "compare": difference_json(comparison.differences)}
    compared = Compared(pairs=(pair,), strictness=config.comparison.strictness)
    return report_comparison(compared, config.comparison, document)


def _document(path: Path) -> object:
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror}") from exc
    except ValueError as exc:
        raise UsageError(f"{path} is not JSON: {exc}") from exc
