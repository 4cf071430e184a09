"""The throughput-latency chart: one line a configuration, through its loads in order. Up and to the left is
better."""

from collections.abc import Sequence

from tpx.analyzer.objectives import NS_PER_MS, RankedVariant
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Measurement
from tpx.report.chart import Axis, Chart, Dot, Line, Mark


def draw(
    key: str, shown: Sequence[RankedVariant], others: Sequence[RankedVariant], goals: Goals
) -> Chart | None:
    """Return the chart of one model; None where no measurement has a latency.

    `shown` get a colour, a marker and a legend, in this order; `others` are thin lines behind them.
    """
    drawn = [m for ranked in (*shown, *others) for m in ranked.ordered if _latency_ms(m)]
    if not drawn:
        return None
    limit_ms = next((c.limit for c in goals.constraints if c.tag == "perf_latency_p99"), None)
    kind = drawn[0].load.kind.replace("_", " ")
    return Chart(
        key=key,
        title="Throughput and latency of each configuration under growing load",
        description=_description(shown, kind),
        x=Axis(title="p99 latency (ms)", auto=True),
        y=Axis(title="Throughput (infer/s)"),
        lines=tuple(
            _line(ranked, labelled=place == 0 or ranked.run.variant.is_default)
            for place, ranked in enumerate(shown)
        ),
        background=tuple(_line(ranked, labelled=False) for ranked in others),
        marks=(Mark(value=limit_ms, text=f"limit {limit_ms:g} ms", upright=True),) if limit_ms else (),
        label_name=kind,
    )


def _line(ranked: RankedVariant, *, labelled: bool) -> Line:
    """Through the loads, one by one for each batch size; otherwise only the best has a label."""
    measurements = _by_load(ranked)
    before = [None, *(m.load.batch_size for m in measurements)]
    return Line(
        name=ranked.name,
        dots=tuple(
            Dot(
                x=_latency_ms(m),
                y=m.throughput,
                title=_title(ranked.name, m),
                label=str(m.load.value) if labelled or m is ranked.best else "",
                stable=m.stable,
                apart=m.load.batch_size != batch,
            )
            for m, batch in zip(measurements, before, strict=False)
        ),
    )


def _latency_ms(measurement: Measurement) -> float:
    """p99, or the mean where that is all there is; 0 is unknown."""
    latency = measurement.latency
    return (latency.p99_ns or latency.avg_ns or 0) / NS_PER_MS


def _description(shown: Sequence[RankedVariant], kind: str) -> str:
    bests = "; ".join(
        f"{r.name}: at best {r.best.throughput:.0f} infer/s, p99 {_latency_ms(r.best):.1f} ms, "
        f"at {kind} {r.best.load.value}"
        for r in shown
    )
    return f"Each line joins the measurements of one configuration in the order of their {kind}. {bests}."


def _by_load(ranked: RankedVariant) -> list[Measurement]:
    known = [m for m in ranked.ordered if _latency_ms(m)]
    return sorted(known, key=lambda m: (m.load.batch_size, m.load.value))


def _title(name: str, measurement: Measurement) -> str:
    unstable = "" if measurement.stable else " (not stable)"
    return (
        f"{name} at {measurement.load}: {measurement.throughput:.1f} infer/s, "
        f"{_latency_ms(measurement):.2f} ms{unstable}"
    )
