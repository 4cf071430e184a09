"""The metrics page of a server in this process, read with Prometheus' own parser."""

import http.client
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from tests.serving.live import Live
from tests.waiting import eventually

PHASES = ("request", "queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the metrics endpoint answered."""

    status: int
    headers: Mapping[str, str]
    text: str


def ask(port: int, path: str = "/metrics", method: str = "GET") -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(status=response.status, headers=headers, text=response.read().decode())
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Series:
    """A sample's name as the page has it, and its labels."""

    name: str
    labels: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Page:
    """A scrape: every value by its series, and what the page says of each family."""

    values: Mapping[Series, float]
    kinds: Mapping[str, str]
    helps: Mapping[str, str] = field(repr=False)

    def value(self, name: str, **labels: str) -> float:
        """Of the one series with this name and exactly these labels."""
        return self.values[Series(name, frozenset(labels.items()))]

    def of(self, name: str, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
        """The values of every series with this name and at least these labels, by its other labels."""
        given = frozenset(labels.items())
        return {
            series.labels - given: value
            for series, value in self.values.items()
            if series.name == name and given <= series.labels
        }

    def failures(self, model: str) -> dict[str, int]:
        """The failures of version 1 of a model that there are, by reason."""
        found = self.of("nv_inference_request_failure", model=model, version="1")
        return {dict(rest)["reason"]: int(count) for rest, count in found.items() if count}

    def names(self) -> set[str]:
        """Of all series."""
        return {series.name for series in self.values}


def parse(text: str) -> Page:
    """A page; fails on whatever Prometheus would not take, and on a series that comes twice."""
    values: dict[Series, float] = {}
    kinds, helps = {}, {}
    for family in text_string_to_metric_families(text):
        name = family.name if f"# TYPE {family.name} " in text else f"{family.name}_total"
        kinds[name], helps[name] = family.type, family.documentation
        for sample in family.samples:
            # this parser calls counters as OpenMetrics does
            shown = sample.name if family.name != name else _shown(sample.name, family.type)
            series = Series(shown, frozenset(sample.labels.items()))
            assert series not in values, f"{series} comes twice"
            values[series] = sample.value
    return Page(values, kinds, helps)


def _shown(name: str, kind: str) -> str:
    return name.removesuffix("_total") if kind == "counter" else name


def scrape(live: Live) -> Page:
    """The page of a server."""
    return parse(ask(live.ports["Metrics Service"]).text)


def page_until(live: Live, name: str, wanted: float, **labels: str) -> Page:
    """The page once a series has a value; what an instance has done arrives a moment later."""
    pages: list[Page] = []

    def there() -> bool:
        pages.append(scrape(live))
        return pages[-1].value(name, **labels) == wanted

    try:
        eventually(there)
    except AssertionError as exc:
        raise AssertionError(f"{name} is {pages[-1].value(name, **labels)}, not {wanted}") from exc
    return pages[-1]
