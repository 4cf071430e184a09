"""Where the mean latency of a measurement goes, in parts that add up to it: the server's, the client's, and
what lies between."""

from collections.abc import Sequence

from tpx.analyzer.objectives import RankedVariant
from tpx.analyzer.reports.charts import short_name
from tpx.analyzer.results.measurement import Measurement
from tpx.perf.report.breakdown import KINDS, Part, breakdown_picture
from tpx.report.document import Picture


def parts_of(measurement: Measurement) -> tuple[Part, ...]:
    """The parts of the mean latency; empty where only the whole is known.

    Each is a mean of its own, over slightly different requests: a part takes no more than is left.
    """
    total = measurement.latency.avg_ns
    if total is None:
        return ()
    own = measurement.breakdown
    wanted = [
        ("client", own.client_send_recv_ns),
        ("queue", own.queue_ns),
        ("infer", own.compute_infer_ns),
        ("input", own.compute_input_ns),
        ("output", own.compute_output_ns),
    ]
    if all(duration is None for _, duration in wanted):
        return ()
    left, parts = total, []
    for kind, duration in wanted:
        taken = min(max(0, duration or 0), left)
        parts.append(Part(kind=kind, duration_ns=taken))
        left -= taken
    parts.append(Part(kind="network", duration_ns=left))
    order = list(KINDS)
    return tuple(sorted((p for p in parts if p.duration_ns), key=lambda part: order.index(part.kind)))


def breakdown_of_configurations(key: str, shown: Sequence[RankedVariant]) -> Picture | None:
    """Draw a bar for each configuration at its best load."""
    named = [
        (f"{short_name(r.name)}, {r.figures.load.value:g}", parts_of(r.figures))
        for r in shown
        if not r.figures.members
    ]
    return breakdown_picture(key, named)


def breakdown_of_loads(key: str, ranked: RankedVariant) -> Picture | None:
    """Draw a bar for each load of one configuration."""
    ordered = sorted(ranked.ordered, key=lambda m: (m.load.batch_size, m.load.value))
    named = [(str(m.load), parts_of(m)) for m in ordered if not m.members]
    return breakdown_picture(key, named)
