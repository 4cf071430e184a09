"""Charts as pictures of a `Document`: SVG from the templates, with legends."""

from tpx.report.chart import Chart
from tpx.report.document import LegendEntry, Picture
from tpx.report.html import render_svg
from tpx.report.layout import Series, lay_out
from tpx.report.styles import marker


def chart_picture(chart: Chart | None, *, legend: bool = True) -> Picture | None:
    """Draw a chart; None for None."""
    if chart is None:
        return None
    drawing, compact = lay_out(chart), lay_out(chart, compact=True)
    entries = [_series_entry(series, marked=bool(series.points)) for series in drawing.series]
    if chart.background:
        entries.append(_entry(f"{len(chart.background)} other configurations", kind="back"))
    if any(not point.stable for series in drawing.series for point in series.points):
        entries.append(_entry("hollow: not stable", kind="hollow"))
    return Picture(
        svg=render_svg("chart.svg.j2", drawing=drawing),
        compact_svg=render_svg("chart.svg.j2", drawing=compact),
        description=f"{chart.title}. {chart.description}",
        width_px=drawing.frame.width,
        legend=tuple(entries) if legend else (),
    )


def part_entry(kind: str, name: str, color: str) -> LegendEntry:
    """Return the legend entry of a part of stacked bars."""
    return _entry(name, kind=f"part {kind}", color=color)


def _series_entry(series: Series, *, marked: bool) -> LegendEntry:
    swatch = marker(0 if series.round else series.style, 14, 7) if marked else ""
    return _entry(
        series.name, style=series.style, line=bool(series.path), dashed=series.dashed, marker=swatch
    )


def _entry(name: str, **swatch: object) -> LegendEntry:
    return LegendEntry(name=name, swatch=render_svg("swatch.svg.j2", **{"kind": "series", **swatch}))
