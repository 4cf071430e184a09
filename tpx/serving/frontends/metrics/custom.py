"""The metrics that models make themselves, on the metrics page."""

from collections.abc import Sequence
from itertools import accumulate

from tpx.serving.custom_metrics import CustomFamily, CustomMetrics
from tpx.serving.frontends.metrics.text import Family, Line, bound, labels


class CustomFamilies:
    """Implements Source."""

    def __init__(self, metrics: CustomMetrics) -> None:
        self._metrics = metrics

    def families(self) -> Sequence[Family]:
        return [
            Family(name=family.name, kind=family.kind, help=_help(family.help), lines=_lines(family))
            for _, family in sorted(self._metrics.families.items())
        ]


def _help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _lines(family: CustomFamily) -> list[Line]:
    lines: list[Line] = []
    for key, series in family.series.items():
        inner = labels(dict(key))
        if family.kind != "histogram":
            lines.append((f"{{{inner}}}" if inner else "", series.value))
            continue
        comma = "," if inner else ""
        counts = list(accumulate(series.counts))
        braced = f"{{{inner}}}" if inner else ""
        lines.append((f"_count{braced}", counts[-1]))
        lines.append((f"_sum{braced}", series.sum))
        for limit, count in zip((*map(bound, series.bounds), "+Inf"), counts, strict=True):
            lines.append((f'_bucket{{{inner}{comma}le="{limit}"}}', count))
    return lines
