"""Comparisons of runs and servers, as a `Document` and as test cases."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tpx.perf.compare import Difference, shown
from tpx.perf.options.measuring import Strictness
from tpx.report.ci import Case, to_junit, to_markdown
from tpx.report.document import Document, Section, Statement, bullets, section
from tpx.report.files import json_text, text_output, write_each
from tpx.report.table import TableField, table, text

_FLAGS = {"same": "", "better": "ok", "worse": "bad"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """Differences of one run, server or configuration from another."""

    title: str
    differences: tuple[Difference, ...]
    left_out: tuple[str, ...] = ()
    """Sentences on what could not be compared."""
    important: bool = False
    """True to show it even if nothing differs."""


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


def comparison_document(compared: Compared, *, everything: bool = True) -> Document:
    """Return the verdict and one table per pair; without `everything`, only figures that differ."""
    findings = [d.finding for d in compared.differences]
    worse, better = findings.count("worse"), findings.count("better")
    headline = f"{worse} worse, {better} better, the rest the same"
    if not worse and not better:
        headline = "No significant difference"
    strictness = compared.strictness
    statement = Statement(
        badge="Worse" if worse else "Better" if better else "Same",
        tone="bad" if worse else "good",
        sentence=f"{headline} ({len(findings)} figures compared{', interrupted' * compared.interrupted}).",
    )
    sections: list[Section] = []
    for pair in compared.pairs:
        listed = [d for d in pair.differences if everything or pair.important or d.finding != "same"]
        left_out = bullets([sentence[:1].upper() + sentence[1:] for sentence in pair.left_out])
        fields: list[TableField[Difference]] = [
            text("Load", lambda d: d.load),
            text("Figure", lambda d: d.figure),
            text("before", lambda d: shown(d.figure, d.before)),
            text("after", lambda d: shown(d.figure, d.after)),
            text("change", lambda d: f"{d.relative * 100:+.1f}%"),
            text("interval", _format_interval),
            text("p", lambda d: f"{d.p_value:.3f}"),
            text("finding", lambda d: d.finding, lambda d: _FLAGS[d.finding]),
        ]
        sections += section(pair.title, table("", "", fields, listed), left_out)
    return Document(
        product="perf",
        title="Comparison",
        subtitle=f"alpha {strictness.alpha:g}, differences above {strictness.min_effect * 100:g}%, "
        f"intervals of {(1 - strictness.alpha) * 100:g}%",
        sections=(Section(blocks=(statement,)), *sections),
    )


def _format_interval(d: Difference) -> str:
    return f"{d.low * 100:+.1f}% to {d.high * 100:+.1f}%" if d.high != float("inf") else "unknown"


def comparison_junit(compared: Compared) -> str:
    """Return one test case for each figure of each load; a figure that got worse is a failure."""
    cases = []
    for pair in compared.pairs:
        for d in pair.differences:
            details = (
                f"{shown(d.figure, d.before)} -> {shown(d.figure, d.after)}, "
                f"{d.relative * 100:+.1f}% [{_format_interval(d)}], p={d.p_value:.3f}"
            )
            case = Case(suite=pair.title, name=f"{d.load} {d.figure}", output=f"{d.finding}: {details}")
            if d.finding == "worse":
                why = f"{d.figure} is worse: {details}"
                case = replace(case, outcome="failure", message=why, kind="regression")
            cases.append(case)
    return to_junit("tpx compare", cases)


def write_comparison(
    compared: Compared,
    document: Mapping[str, object],
    *,
    json: Path | None,
    junit: Path | None,
    markdown: Path | None,
) -> None:
    """Write the files of a comparison that have a path; `document` is its JSON.

    Raises MeasurementError naming each file that could not be written; the others are written.
    """
    write_each(
        [
            text_output("JSON", json, lambda: json_text(document)),
            text_output("JUnit", junit, lambda: comparison_junit(compared)),
            text_output("Markdown", markdown, lambda: to_markdown(comparison_document(compared))),
        ]
    )
