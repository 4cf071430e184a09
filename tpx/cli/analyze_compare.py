"""`tpx analyze compare A B`: differences between two runs, and an exit code for CI."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from tpx.analyzer.comparison import AnalysisComparison, compare_runs
from tpx.analyzer.results.journal import read_last_run
from tpx.analyzer.results.run import Run
from tpx.cli.analyze_options import journal_of
from tpx.cli.comparing import AnalyzeCompareConfig, report_comparison
from tpx.errors import UsageError
from tpx.options import from_argv
from tpx.perf.answers.compare import difference_json
from tpx.perf.report.comparison import Against, Compared

NAMES_SHOWN = 5


def compare(argv: Sequence[str]) -> int:
    """Print the differences; return 5 if anything regressed, else 0."""
    config = from_argv(AnalyzeCompareConfig, argv)
    before, after = (Run.from_records(read_last_run(journal_of(path))) for path in config.runs)
    found = compare_runs(before, after, config.comparison.strictness)
    if not found.pairs:
        raise UsageError(
            f"{config.runs[0]} and {config.runs[1]} have no configuration under the same load in common"
        )
    compared = Compared(pairs=tuple(_pairs(found)), strictness=config.comparison.strictness, unit="infer/s")
    return report_comparison(compared, config.comparison, _document(found), everything=config.all)


def _pairs(found: AnalysisComparison) -> Iterator[Against]:
    """Yield the differences by configuration, and last what only one run has."""
    for (before, after, recommended), pairs in groupby(
        found.pairs, key=lambda pair: (pair.before, pair.after, pair.recommended)
    ):
        name = before if before == after else f"{before} -> {after}"
        yield Against(
            title=f"{name}{' (recommended)' if recommended else ''}",
            differences=tuple(pair.difference for pair in pairs),
            important=recommended,
        )
    left_out = tuple(
        f"only in the {which} run: {', '.join(names[:NAMES_SHOWN])}" + ", ..." * (len(names) > NAMES_SHOWN)
        for names, which in ((found.only_before, "first"), (found.only_after, "second"))
        if names
    )
    if left_out:
        yield Against(title="Not compared", differences=(), left_out=left_out)


def _document(found: AnalysisComparison) -> dict[str, object]:
    """Return the differences as JSON."""
    differences: list[dict[str, object]] = difference_json([pair.difference for pair in found.pairs])
    pairs: list[dict[str, object]] = [
        {"model": p.model, "configurations": [p.before, p.after], "recommended": p.recommended} | difference
        for p, difference in zip(found.pairs, differences, strict=True)
    ]
    return {"schema": 1, "compare": pairs, "only_before": found.only_before, "only_after": found.only_after}
