"""Test cases as JUnit XML, which CI servers display."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

_NO_XML = {code: " " for code in range(32) if code not in (9, 10, 13)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One assertion of a report and its outcome."""

    suite: str
    name: str
    outcome: Literal["passed", "failure", "error", "skipped"] = "passed"
    message: str = ""
    kind: str = ""
    """Machine-readable kind of the failure or error."""
    time_s: float = 0.0
    output: str = ""


def render(name: str, cases: Sequence[Case], *, started: str = "", error: str = "") -> str:
    """Return the XML of a suite; `started` is an ISO time, `error` the reason why the run was aborted."""
    counts = {
        f"{outcome}{'' if outcome == 'skipped' else 's'}": str(sum(c.outcome == outcome for c in cases))
        for outcome in ("failure", "error", "skipped")
    }
    suite = Element("testsuite", {"name": name, "tests": str(len(cases)), **counts})
    if started:
        suite.set("timestamp", started.partition("+")[0].partition(".")[0])
    suite.set("time", f"{sum(case.time_s for case in cases):.3f}")
    suite.extend(map(_element, cases))
    if error:
        SubElement(suite, "system-err").text = _clean(error)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _element(case: Case) -> Element:
    made = Element("testcase", classname=case.suite, name=_clean(case.name), time=f"{case.time_s:.3f}")
    if case.outcome != "passed":
        said = SubElement(made, case.outcome, message=_clean(case.message))
        if case.kind:
            said.set("type", case.kind)
    if case.output:
        SubElement(made, "system-out").text = _clean(case.output)
    return made


def _clean(text: str) -> str:
    """Replace characters that are invalid in XML, which a server's messages may contain."""
    return text.translate(_NO_XML)
