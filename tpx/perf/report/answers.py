"""Answers as text, behind perf_analyzer's summary: which load meets the objectives, and where the knee is."""

from collections.abc import Sequence

from tpx.perf.answers.highest import falls_behind
from tpx.perf.answers.knee import Knee, Scalability, find_knee
from tpx.perf.report.model import Report
from tpx.perf.results import LevelResult, Validity, Verdict


def answers_text(report: Report) -> str:
    """What was asked for beside figures; empty where nothing was."""
    lines: list[str] = []
    for result in report.levels:
        if result.validity is not None:
            lines += _scenario(report.config.scenario, result, result.validity)
    if report.config.slo:
        lines += _objectives(report)
    if report.config.knee:
        lines += _knee(find_knee(report.levels))
    return "\n".join(lines) + "\n" if lines else ""


def level_name(result: LevelResult) -> str:
    """`concurrency 16`, `request rate 250`"""
    kind = result.level.kind
    return f"{kind.unit or kind.text} {result.level.value:g}"


def _scenario(name: str, result: LevelResult, validity: Validity) -> list[str]:
    head = f"MLPerf {name}, {level_name(result)}: {'VALID' if validity.valid else 'INVALID'}"
    lines = ["", head]
    if validity.estimate_ns is not None and result.percentile is not None:
        estimate = validity.estimate_ns / 1000
        lines.append(f"  p{result.percentile:g} is at most {estimate:.0f} usec, with 99% confidence")
    for condition in validity.conditions:
        advice = f" ({condition.advice})" if condition.advice else ""
        lines.append(f"  {condition.name}: {'yes' if condition.kept else 'NO'}{advice}")
    return lines


def _objectives(report: Report) -> list[str]:
    asked = ", ".join(o.text for o in report.config.slo)
    answer = next((r for r in report.levels if r.level == report.answer), None)
    if answer is None:
        head = f"SLO {asked}: no measured load meets it."
    else:
        head = (
            f"SLO {asked}: met up to {level_name(answer)}, {answer.throughput_infer_per_s:.6g} infer/sec "
            f"(with {report.config.slo_confidence * 100:g}% confidence)."
        )
    lines = ["", head]
    for result in sorted(report.levels, key=lambda r: r.level.value):
        lines += [
            f"  {level_name(result)}: {a.objective.text} {a.outcome.value}: "
            f"{a.objective.show(a.value)} ({a.reason})"
            for a in result.slo
        ]
        if result.verdict is Verdict.ERRORS and result.reason:
            lines.append(f"  {level_name(result)}: {result.reason}")
        if falls_behind(result):
            lines.append(f"  {level_name(result)}: falls behind, fewer answers came than requests were due")
        if result.failed and not any(a.objective.quantity == "error_rate" for a in result.slo):
            lines.append(
                f"  {level_name(result)}: {result.failed} requests failed, which no objective limits"
            )
    return lines


def _knee(knee: Knee) -> list[str]:
    lines = ["", "Knee:"]
    for what, result in (
        ("throughput bends (Kneedle)", knee.bend),
        ("highest throughput per latency", knee.power),
        ("last level whose further load paid", knee.worthwhile),
    ):
        lines.append(f"  {what}: {_point(result)}")
    return [*lines, *_model(knee.model)]


def _point(result: LevelResult | None) -> str:
    if result is None:
        return "not to be told from these levels"
    return f"{level_name(result)}, {result.throughput_infer_per_s:.6g} infer/sec"


def _model(model: Scalability | None) -> Sequence[str]:
    if model is None:
        return ["  universal scalability law: four concurrency levels are needed"]
    peak = (
        f"peak of {model.peak_throughput:.6g} infer/sec at concurrency {model.peak_load:.0f}"
        if model.peak_load is not None
        else f"no peak, throughput approaches {model.peak_throughput:.6g} infer/sec"
    )
    return [
        f"  universal scalability law: {peak} (contention {model.contention:.4g}, coherency "
        f"{model.coherency:.4g}, fit error {model.fit_error * 100:.1f}%)"
    ]
