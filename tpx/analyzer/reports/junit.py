"""A run as JUnit's XML, which CI servers show: each model's verdict and each of its constraints is a test."""

from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from tpx.analyzer.limits import limits_of
from tpx.analyzer.reports.verdict import Finding, Verdict, judge
from tpx.analyzer.results.run import ModelRun, Run

_NO_XML = {code: " " for code in range(32) if code not in (9, 10, 13)}
_FAILS = (Finding.NONE_SATISFIES, Finding.NOTHING)


def junit_text(run: Run) -> str:
    """The document. A model without a measurement is an error, a constraint that the recommended
    configuration misses a failure, a constraint of which nothing is certain is skipped."""
    cases = [case for model in run.models for case in _model(model, run)]
    suite = Element(
        "testsuite",
        name="tpx analyze",
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors=str(sum(case.find("error") is not None for case in cases)),
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
        timestamp=run.started.provenance.started.partition("+")[0],
        time=f"{run.elapsed_ns / 1e9:.3f}",
    )
    suite.extend(cases)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _model(model: ModelRun, run: Run) -> Iterator[Element]:
    verdict = judge(model, run.started.goals)
    case = Element("testcase", classname=model.model, name="verdict", time=f"{_spent_s(model):.3f}")
    text = _clean(f"{verdict.sentence}. {verdict.detail}")
    if verdict.finding is Finding.NOTHING:
        SubElement(case, "error", message=text, type=verdict.finding.value)
    elif verdict.finding in _FAILS:
        SubElement(case, "failure", message=text, type=verdict.finding.value)
    SubElement(case, "system-out").text = text
    yield case
    yield from _constraints(verdict, run)


def _constraints(verdict: Verdict, run: Run) -> Iterator[Element]:
    if verdict.best is None:
        return
    undetermined = verdict.conclusion.undetermined if verdict.conclusion else ()
    for limit in limits_of(run.started.goals, verdict.model):
        case = Element("testcase", classname=f"{verdict.model}.constraints", name=str(limit), time="0")
        if not limit.kept_by(verdict.best.figures):
            message = f"{verdict.best.name}: {limit.miss(verdict.best.figures)}"
            SubElement(case, "failure", message=_clean(message), type="constraint")
        elif limit in undetermined:
            SubElement(case, "skipped", message="the repetitions lie on both sides of the limit")
        yield case


def _spent_s(model: ModelRun) -> float:
    return sum(m.duration_ns for v in model.variants for m in v.measurements) / 1e9


def _clean(text: str) -> str:
    """Without what XML cannot hold: a server's words may have anything in them."""
    return text.translate(_NO_XML)
