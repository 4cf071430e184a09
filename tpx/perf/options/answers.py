"""The options that ask for answers: what has to hold, how surely, and what is explained."""

from dataclasses import dataclass
from typing import Literal

from tpx.errors import UsageError
from tpx.options import option
from tpx.perf.objectives import Objective, parse_objectives
from tpx.perf.settings import one_of, refuse

_ANSWERS = "Answers"

_rule = one_of(
    "--stability",
    ("pa", "ci"),
    "Unsupported type provided: '{}'. The available options are 'pa' or 'ci'; "
    "a spread in percent is --stability-percentage (-s).",
)


def parse_share(text: str) -> float:
    """`2%` or `0.02`."""
    number = text.removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        raise ValueError("expected a share such as 2% or 0.02") from None
    return value / 100 if number != text else value


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """Stability, objectives, the knee, comparisons, explanations."""

    stability: Literal["pa", "ci"] | None = option(
        None,
        "when a level has been measured enough: pa, perf_analyzer's spread of three windows, or ci, when "
        "the 95% confidence intervals of throughput and latency reach at most half of "
        "--stability-percentage to either side (default pa, with --slo ci)",
        section=_ANSWERS,
        metavar="pa|ci",
        parse=_rule,
    )
    ci_width: float | None = option(
        None,
        "end a level when the intervals of throughput and latency are no wider than this share of them: "
        "--stability ci with a --stability-percentage of its own",
        section=_ANSWERS,
        metavar="P%",
        parse=parse_share,
    )
    require_stable: bool = option(False, "exit with 2 when any level is unstable", section=_ANSWERS)
    allow_partial: bool = option(
        False, "do not exit with 130 when Ctrl-C cuts the run short: take what it measured", section=_ANSWERS
    )
    stop_on_unstable: bool = option(
        False, "measure no further level after an unstable one, as perf_analyzer does", section=_ANSWERS
    )
    slo: tuple[Objective, ...] = option(
        (),
        "find the highest load that meets this with safety, such as 'p99<20ms,error_rate<0.1%' "
        "(repeatable); without a range from 1 upwards; exit with 4 where no level does",
        section=_ANSWERS,
        metavar="FIGURE<VALUE",
        parse=parse_objectives,
    )
    slo_confidence: float = option(
        0.99, "confidence with which an objective is called met, or broken", section=_ANSWERS
    )
    knee: bool = option(False, "show where more load stops paying, and the predicted peak", section=_ANSWERS)
    explain: bool = option(
        False, "show the formula of each figure with its numbers filled in", section=_ANSWERS
    )
    ab: tuple[str, ...] = option(
        (),
        "measure these servers in turns, block by block, and tell whether they differ: "
        "--ab URL1 URL2 ... (the first is the base)",
        section=_ANSWERS,
        metavar="URL",
    )
    ab_blocks: int = option(12, "blocks of each server with --ab", section=_ANSWERS)
    alpha: float = option(
        0.05, "how often a difference may be found where there is none (--ab)", section=_ANSWERS
    )
    min_effect: float = option(
        0.02,
        "differences below this share are none, however sure (--ab)",
        section=_ANSWERS,
        metavar="P%",
        parse=parse_share,
    )

    def check_answers(self) -> None:
        """Raise UsageError for a value out of range, or one that says something of what is not asked."""
        if self.ci_width is not None and not 0 < self.ci_width < 1:
            refuse("--ci-width", "The value must be above 0% and below 100%.")
        if self.ci_width is not None and self.stability == "pa":
            raise UsageError("--ci-width is of --stability ci, and --stability pa has no intervals")
        if not 0.5 < self.slo_confidence < 1:
            refuse("--slo-confidence", "The value must be in range (0.5, 1).")
        if self.slo_confidence != AnswerOptions.slo_confidence and not self.slo:
            raise UsageError("--slo-confidence is of the objectives of --slo")
        self._check_comparing()

    def _check_comparing(self) -> None:
        if not 0 < self.alpha < 0.5:
            refuse("--alpha", "The value must be in range (0, 0.5).")
        if not 0 <= self.min_effect < 1:
            refuse("--min-effect", "The value must be >= 0% and below 100%.")
        if self.ab_blocks < 4:
            refuse("--ab-blocks", "The value must be >= 4: fewer blocks cannot show a difference.")
        if len(self.ab) == 1 or len(set(self.ab)) > 26:
            raise UsageError("--ab compares from two to 26 servers: --ab URL1 URL2")
        if self.ab and self.slo:
            raise UsageError("--ab compares servers at given loads; it does not search for --slo")
        for flag, differs in (
            ("--ab-blocks", self.ab_blocks != AnswerOptions.ab_blocks),
            ("--alpha", self.alpha != AnswerOptions.alpha),
            ("--min-effect", self.min_effect != AnswerOptions.min_effect),
        ):
            if differs and not self.ab:
                raise UsageError(f"{flag} is of --ab URL1 URL2, or of `tpx perf compare`")

    @property
    def rule(self) -> Literal["pa", "ci"]:
        """The stability rule, also where none was given."""
        return self.stability or ("ci" if self.slo or self.ci_width is not None else "pa")
