"""`tpx perf compare A.json B.json`: what changed, and an exit status for continuous integration."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tpx.errors import UsageError
from tpx.options import Option, from_argv
from tpx.perf.answers.compare import (
    Strictness,
    compare,
    comparison_text,
    difference_json,
    read_levels,
)
from tpx.perf.options.answers import parse_share

REGRESSION = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig:
    """Two runs, and what counts as a difference."""

    runs: Annotated[
        tuple[Path, ...],
        Option(
            "two files of tpx perf --json: before and after", (), "Runs", "A.json B.json", positional=True
        ),
    ] = ()
    alpha: Annotated[float, Option("how often a difference may be found where there is none")] = 0.05
    min_effect: Annotated[
        float,
        Option("differences below this share are none, however sure", metavar="P%", parse=parse_share),
    ] = 0.02
    json: Annotated[Path | None, Option("write the differences as JSON", metavar="FILE")] = None

    def __post_init__(self) -> None:
        if len(self.runs) != 2:
            raise UsageError(f"tpx perf compare takes two files, got {len(self.runs)}")
        if not 0 < self.alpha < 0.5:
            raise UsageError("Failed to parse --alpha. The value must be in range (0, 0.5).")
        if not 0 <= self.min_effect < 1:
            raise UsageError("Failed to parse --min-effect. The value must be >= 0% and below 100%.")


def main(argv: Sequence[str]) -> int:
    """Print what changed; 5 where something became worse, else 0. Raises UsageError."""
    config = from_argv(CompareConfig, argv)
    strictness = Strictness(alpha=config.alpha, min_effect=config.min_effect)
    before, after = (read_levels(_document(path), str(path)) for path in config.runs)
    comparison = compare(before, after, strictness)
    if not comparison.differences:
        raise UsageError(f"{config.runs[0]} and {config.runs[1]} have no load in common")
    print(comparison_text(comparison, strictness), end="", flush=True)
    if config.json is not None:
        text = json.dumps({"schema": 1, "compare": difference_json(comparison.differences)}, indent=1)
        try:
            config.json.write_text(text + "\n", encoding="utf-8")
        except OSError as exc:
            raise UsageError(f"cannot write {config.json}: {exc.strerror}") from exc
    return REGRESSION if comparison.regressions else 0


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror}") from exc
    except ValueError as exc:
        raise UsageError(f"{path} is no JSON: {exc}") from exc
