"""A chart, laid out: every position in pixels, for `chart.svg.j2` to draw."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpx.report.labels import Label, Place
from tpx.report.scales import Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The size of a chart, and where its axes lie."""

    width: int = 960
    height: int = 470
    left: int = 74
    right: int = 934
    top: int = 20
    bottom: int = 412


FRAME = Frame()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement."""

    x: float
    y: float
    marker: str
    """Path of its marker."""
    title: str
    stable: bool = True
    """Whether its marker is filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line, with a colour and a marker of its own."""

    name: str
    style: int
    """Which of the colours and markers."""
    path: str
    points: tuple[Point, ...] = ()
    labels: tuple[Label, ...] = ()
    legend_marker: str = ""
    dashed: bool = False
    whiskers: str = ""
    """Path of upright lines through the points: how far their values are sure."""
    faint: bool = False
    """Drawn behind the others, and lighter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """An upright rectangle."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A dashed line across at a height, or down at a place, with a text."""

    at: float
    text: str
    upright: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A vertical line at a value that is not to be exceeded."""

    x: float
    text: str
    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Everything that the template draws."""

    key: str
    """Makes the ids in the page unique."""
    title: str
    description: str
    x_title: str
    y_title: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[Series, ...]
    background: tuple[str, ...] = ()
    """Paths of what is not shown in detail."""
    limit: Limit | None = None
    bars: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()
    hollow_means: str = "did not become stable"
    label_name: str = ""
    """What the labels beside points are."""
    frame: Frame = FRAME

    @property
    def has_unstable(self) -> bool:
        """Whether some markers are hollow."""
        return any(not point.stable for series in self.series for point in series.points)


def polyline(places: Sequence[Place]) -> str:
    """A path through all of them; nothing where there is none."""
    return "M" + " L".join(f"{x:g},{y:g}" for x, y in places) if places else ""
