"""Comparisons of runs and servers, as a `Document` and as test cases."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tpx.perf.compare import Difference, Outcome, overall, shown
from tpx.perf.options.measuring import Strictness
from tpx.perf.statistics.findings import FEWEST_RUNS
from tpx.report.ci import Case, to_junit
from tpx.report.digits import change, change_range, duration
from tpx.report.document import Document, Section, Statement, Tone, bullets, section
from tpx.report.table import NO_VALUE, TableField, table, text

_FLAGS = {"same": "", "better": "ok", "worse": "bad", "undecided": "warn"}
_BADGES: Mapping[Outcome, tuple[str, Tone]] = {
    "worse": ("Worse", "bad"),
    "undecided": ("Undecided", "warn"),
    "better": ("Better", "good"),
    "same": ("Same", "good"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """Differences of one run, server or configuration from another."""

    title: str
    differences: tuple[Difference, ...]
    left_out: tuple[str, ...] = ()
    """Sentences on what could not be compared."""
    important: bool = False
    """True to show it even if nothing differs; if any is, others cannot leave the outcome undecided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """All comparisons made with one significance rule."""

    pairs: tuple[Against, ...]
    strictness: Strictness
    interrupted: bool = False

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Differences of all pairs."""
        return tuple(d for pair in self.pairs for d in pair.differences)

    @property
    def outcome(self) -> Outcome:
        """The outcome: worse if any figure is, else that of the important ones."""
        important = tuple(d for pair in self.pairs if pair.important for d in pair.differences)
        everything = overall(self.differences)
        return everything if everything == "worse" or not important else overall(important)


def comparison_document(compared: Compared, *, everything: bool = True) -> Document:
    """Return the verdict and one table per pair; without `everything`, only figures that differ."""
    strictness, outcome = compared.strictness, compared.outcome
    statement = Statement(
        badge=_BADGES[outcome][0],
        tone=_BADGES[outcome][1],
        sentence=f"{_headline(compared)} ({len(compared.differences)} figures compared"
        f"{', interrupted' * compared.interrupted}).",
    )
    sections: list[Section] = []
    for pair in compared.pairs:
        known = ("better", "worse")
        listed = [d for d in pair.differences if everything or pair.important or d.finding in known]
        left_out = bullets([sentence[:1].upper() + sentence[1:] for sentence in pair.left_out])
        fields: list[TableField[Difference]] = [
            text("Load", lambda d: d.load),
            text("Figure", lambda d: d.figure),
            text("before", lambda d: shown(d.figure, d.before)),
            text("after", lambda d: shown(d.figure, d.after)),
            text("change", lambda d: change(d.relative, 1)),
            text("interval", _format_interval),
            text("p", lambda d: f"{d.p_value:.3f}"),
            text("finding", lambda d: d.finding, lambda d: _FLAGS[d.finding]),
            text("to decide", _describe_need),
        ]
        sections += section(pair.title, table("", "", fields, listed), left_out)
    return Document(
        product="perf",
        title="Comparison",
        subtitle=f"alpha {strictness.alpha:g} and intervals of {(1 - strictness.alpha) * 100:g}%, "
        f"corrected for the number of figures; the same: certainly less than "
        f"{strictness.min_effect * 100:g}% apart",
        sections=(Section(blocks=(statement,)), *sections),
    )


def _headline(compared: Compared) -> str:
    found = Counter(d.finding for d in compared.differences)
    if set(found) == {"same"}:
        return f"No difference above {compared.strictness.min_effect * 100:g}%"
    if not any(math.isfinite(d.high) for d in compared.differences):
        return (
            f"Undecided: one run, or two, do not tell how runs differ; --baseline takes {FEWEST_RUNS} or more"
        )
    order: tuple[Outcome, ...] = ("worse", "better", "undecided", "same")
    return ", ".join(
        f"{found[each]} {'the same' if each == 'same' else each}" for each in order if found[each]
    )


def _format_interval(d: Difference) -> str:
    return "too noisy" if d.contrast.too_noisy else change_range(d.low, d.high, 1)


def _describe_need(d: Difference) -> str:
    """Return `about 40 s more per side` for an undecided figure, else a dash."""
    if d.finding != "undecided" or not d.more_s:
        return NO_VALUE
    return f"about {duration(max(1e9, d.more_s * 1e9))} more per side"


def comparison_junit(compared: Compared) -> str:
    """Return one test case for each figure of each load; one that is worse or undecided is a failure."""
    cases = []
    for pair in compared.pairs:
        for d in pair.differences:
            details = (
                f"{shown(d.figure, d.before)} -> {shown(d.figure, d.after)}, "
                f"{change(d.relative, 1)} [{_format_interval(d)}], p={d.p_value:.3f}"
            )
            case = Case(suite=pair.title, name=f"{d.load} {d.figure}", output=f"{d.finding}: {details}")
            if d.finding == "worse":
                why = f"{d.figure} is worse: {details}"
                case = replace(case, outcome="failure", message=why, kind="regression")
            elif d.finding == "undecided" and compared.strictness.undecided == "fail":
                why = f"{d.figure} is undecided: {details}; {_describe_need(d)}"
                case = replace(case, outcome="failure", message=why, kind="undecided")
            cases.append(case)
    return to_junit("tpx compare", cases)
