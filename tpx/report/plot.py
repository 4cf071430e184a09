"""Laying out lines and bars as a chart: values in, positions out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tpx.report.chart import FRAME, Bar, Chart, Frame, Limit, Mark, Point, Series, polyline
from tpx.report.labels import LabelPlacer, Place
from tpx.report.scales import Axis, Tick
from tpx.report.styles import STYLES, marker


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A value of a line before it is laid out."""

    x: float
    y: float
    title: str
    label: str = ""
    stable: bool = True
    apart: bool = False
    """Not joined with the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What becomes a series; `low` and `high` are the ends of its dots' intervals, where they are known."""

    name: str
    dots: tuple[Dot, ...]
    marked: bool = True
    spread: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Titles:
    """The words of a chart."""

    title: str
    description: str
    x: str
    y: str
    labels: str = ""
    hollow: str = "did not become stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a chart has beside its lines; `x_ticks` in the place of its axis' own."""

    background: tuple[Line, ...] = ()
    """Thin lines behind the others, without markers."""
    limit: Limit | None = None
    x_ticks: tuple[Tick, ...] = ()
    bars: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()
    frame: Frame = FRAME


NO_EXTRAS = Extras()


def lay_out(
    key: str,
    titles: Titles,
    x: Axis,
    y: Axis,
    lines: Sequence[Line],
    extras: Extras = NO_EXTRAS,
) -> Chart:
    """Lines and what else there is as a chart; labels go where there is room."""
    labels = LabelPlacer()
    placed = [_places(line, x, y) for line in lines]
    for places in placed:
        for place in places:
            labels.reserve_point(place)
    for line, places in zip(lines, placed, strict=True):
        for (before, after), dot in zip(pairwise(places), line.dots[1:], strict=True):
            if not dot.apart:
                labels.reserve_line(before, after)
    return Chart(
        key=key,
        title=titles.title,
        description=titles.description,
        x_title=titles.x,
        y_title=titles.y,
        x_ticks=extras.x_ticks or x.ticks,
        y_ticks=y.ticks,
        series=tuple(_series(line, number, labels, x, y) for number, line in enumerate(lines)),
        background=tuple(_path(line, x, y) for line in extras.background),
        limit=extras.limit,
        bars=extras.bars,
        marks=extras.marks,
        hollow_means=titles.hollow,
        label_name=titles.labels,
        frame=extras.frame,
    )


def _places(line: Line, x: Axis, y: Axis) -> list[Place]:
    return [(x.at(dot.x), y.at(dot.y)) for dot in line.dots]


def _path(line: Line, x: Axis, y: Axis) -> str:
    """Through the dots that are joined."""
    joined: list[list[Place]] = []
    for dot, place in zip(line.dots, _places(line, x, y), strict=True):
        if dot.apart or not joined:
            joined.append([])
        joined[-1].append(place)
    return " ".join(map(polyline, joined))


def _series(line: Line, number: int, labels: LabelPlacer, x: Axis, y: Axis) -> Series:
    style, places = number % STYLES, _places(line, x, y)
    named = [(dot, place) for dot, place in zip(line.dots, places, strict=True) if dot.label]
    return Series(
        name=line.name,
        style=style,
        dashed=number >= STYLES,
        path=_path(line, x, y),
        whiskers=_whiskers(line, x, y),
        points=tuple(
            Point(x=px, y=py, marker=marker(style, px, py), title=dot.title, stable=dot.stable)
            for dot, (px, py) in zip(line.dots, places, strict=True)
        )
        if line.marked
        else (),
        labels=tuple(label for dot, place in named if (label := labels.place(place, dot.label))),
        legend_marker=marker(style, 14, 7) if line.marked else "",
    )


def _whiskers(line: Line, x: Axis, y: Axis) -> str:
    """Nothing where the interval is narrower than a line."""
    ends = [
        (x.at(dot.x), y.at(low), y.at(high)) for dot, (low, high) in zip(line.dots, line.spread, strict=False)
    ]
    return " ".join(f"M{at:g},{low:g} V{high:g}" for at, low, high in ends if abs(low - high) > 1)
