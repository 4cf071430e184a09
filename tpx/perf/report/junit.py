"""A run as JUnit's XML, which CI servers show: a test case for every level, and one for every objective."""

from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from tpx.perf.report.figures import load_name, rate, usec
from tpx.perf.report.model import Report
from tpx.perf.results import LevelResult, Verdict

_NO_XML = {code: " " for code in range(32) if code not in (9, 10, 13)}


def junit_text(report: Report) -> str:
    """The document. A level that is unstable, over the limit or without an answer is a failure, one whose
    requests all failed an error; where there are objectives, only they decide."""
    cases = [*_levels(report), *_objectives(report)]
    suite = Element(
        "testsuite",
        name=f"tpx perf {report.model.name}",
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors=str(sum(case.find("error") is not None for case in cases)),
        timestamp=report.started.partition(".")[0],
        time=f"{sum(float(case.get('time', '0')) for case in cases):.3f}",
    )
    suite.extend(cases)
    if report.error:
        SubElement(suite, "system-err").text = _clean(report.error)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _levels(report: Report) -> Iterator[Element]:
    for result in report.levels:
        took_s = sum(w.duration_ns for w in result.windows) / 1e9
        case = Element(
            "testcase", classname=report.model.name, name=load_name(result.level), time=f"{took_s:.3f}"
        )
        _judge(case, result, only_errors=bool(report.config.answers.slo))
        SubElement(case, "system-out").text = _clean(_figures(result))
        yield case


def _judge(case: Element, result: LevelResult, *, only_errors: bool) -> None:
    if result.interrupted:
        SubElement(case, "skipped", message="the run was interrupted")
    elif result.verdict is Verdict.ERRORS:
        SubElement(case, "error", message=_clean(result.reason), type=result.verdict.value)
    elif result.validity is not None and not result.validity.valid:
        broken = "; ".join(f"{c.name}: {c.advice}" for c in result.validity.conditions if not c.kept)
        SubElement(case, "failure", message=_clean(f"INVALID: {broken}"), type="scenario")
    elif not result.meets_limits and not only_errors:
        SubElement(case, "failure", message=_clean(result.reason), type=result.verdict.value)


def _objectives(report: Report) -> Iterator[Element]:
    """Each objective at the load that is the answer, or at the lowest that was measured."""
    if not report.config.answers.slo or not report.levels:
        return
    chosen = report.best or min(report.levels, key=lambda r: r.level.value)
    for assessment in chosen.slo:
        text = assessment.objective.text
        case = Element("testcase", classname=f"{report.model.name}.slo", name=text, time="0")
        if not assessment.met:
            message = f"{text} at {load_name(chosen.level)}: {assessment.outcome.value}, {assessment.reason}"
            SubElement(case, "failure", message=_clean(message), type="slo")
        yield case


def _figures(result: LevelResult) -> str:
    if result.latency is None:
        return f"no successful request, {result.failed} failed"
    return (
        f"throughput {rate(result.throughput_infer_per_s)} infer/sec, "
        f"mean {usec(result.latency.mean_ns)} usec, "
        f"p50 {usec(result.latency.at(50.0))} usec, p99 {usec(result.latency.at(99.0))} usec, "
        f"{result.requests} requests, {result.failed} failed"
    )


def _clean(text: str) -> str:
    """Without what XML cannot hold: a server's words may have anything in them."""
    return text.translate(_NO_XML)
