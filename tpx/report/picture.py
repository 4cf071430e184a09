"""Charts, bars and heat maps as pictures of a `Document`: SVG from the templates, with legends."""

from tpx.report.chart import Chart
from tpx.report.document import LegendEntry, Picture
from tpx.report.html import render_svg


def chart_picture(chart: Chart | None, *, legend: bool = True) -> Picture | None:
    """Draw a chart; None for None."""
    if chart is None:
        return None
    entries = [
        _entry(
            series.name,
            style=series.style,
            line=bool(series.path),
            dashed=series.dashed,
            marker=series.legend_marker,
        )
        for series in chart.series
    ]
    if chart.background:
        entries.append(_entry(f"{len(chart.background)} other configurations", kind="back"))
    if chart.has_unstable:
        entries.append(_entry(f"hollow: {chart.hollow_means}", kind="hollow"))
    return Picture(
        svg=render_svg("chart.svg.j2", chart=chart),
        description=f"{chart.title}. {chart.description}",
        width_px=chart.frame.width,
        legend=tuple(entries) if legend else (),
    )


def part_entry(kind: str, name: str, color: str) -> LegendEntry:
    """Return the legend entry of a part of stacked bars."""
    return _entry(name, kind=f"part {kind}", color=color)


def _entry(name: str, **swatch: object) -> LegendEntry:
    return LegendEntry(name=name, swatch=render_svg("swatch.svg.j2", **{"kind": "series", **swatch}))
