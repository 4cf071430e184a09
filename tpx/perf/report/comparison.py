"""What `tpx perf compare` and `--ab` found, for the page of a CI job and for CI servers."""

from dataclasses import dataclass, replace

from tpx.perf.answers.compare import Comparison, Difference, Strictness
from tpx.perf.report.markdown import escaped
from tpx.report.junit import Case, render

_SIGNS = {"same": "", "better": "\u2705 better", "worse": "\u274c worse"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """One run or server held against another."""

    before: str
    after: str
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """All that was held against something, by one rule."""

    pairs: tuple[Against, ...]
    strictness: Strictness
    interrupted: bool = False

    @property
    def differences(self) -> tuple[Difference, ...]:
        return tuple(d for pair in self.pairs for d in pair.comparison.differences)


def comparison_markdown(compared: Compared) -> str:
    """The document."""
    findings = [d.finding for d in compared.differences]
    worse, better = findings.count("worse"), findings.count("better")
    sign = "\u274c" if worse else "\u2705"
    said = f"{worse} worse, {better} better" if worse or better else "no significant difference"
    lines = [f"### {sign} {said}{', interrupted' if compared.interrupted else ''}", ""]
    for pair in compared.pairs:
        lines += [
            f"**{escaped(pair.after)}** against {escaped(pair.before)}",
            "",
            *_table(pair.comparison),
            "",
        ]
        lines += [*map(str.capitalize, pair.comparison.left_out), ""] if pair.comparison.left_out else []
    strictness = compared.strictness
    lines.append(
        f"<sub>alpha {strictness.alpha:g}, differences above {strictness.min_effect * 100:g}%, intervals of "
        f"{(1 - strictness.alpha) * 100:g}%</sub>"
    )
    return "\n".join(lines) + "\n"


def _table(comparison: Comparison) -> list[str]:
    lines = [
        "| Load | Figure | before | after | change | interval | p | |",
        "|---|---|" + "---:|" * 5 + "---|",
    ]
    for d in comparison.differences:
        cells = [
            d.load,
            d.figure,
            d.show(d.before),
            d.show(d.after),
            f"{d.relative * 100:+.1f}%",
            f"{d.low * 100:+.1f}% to {d.high * 100:+.1f}%",
            f"{d.p_value:.3f}",
            _SIGNS[d.finding],
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def comparison_junit(compared: Compared) -> str:
    """Return a test case for every figure of every load; what became worse is a failure."""
    return render(
        "tpx perf compare", [_case(pair, d) for pair in compared.pairs for d in pair.comparison.differences]
    )


def _case(pair: Against, d: Difference) -> Case:
    told = _told(d)
    made = Case(
        suite=f"{pair.after} against {pair.before}",
        name=f"{d.load} {d.figure}",
        output=f"{d.finding}: {told}",
    )
    if d.finding != "worse":
        return made
    return replace(made, outcome="failure", message=f"{d.figure} is worse: {told}", kind="regression")


def _told(d: Difference) -> str:
    return (
        f"{d.show(d.before)} -> {d.show(d.after)}, {d.relative * 100:+.1f}% "
        f"[{d.low * 100:+.1f}%, {d.high * 100:+.1f}%], p={d.p_value:.3f}"
    )
