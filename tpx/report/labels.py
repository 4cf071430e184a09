"""Labels beside the points of a chart, off all lines, markers and other labels."""

from dataclasses import dataclass

HEIGHT_PX, CHAR_WIDTH_PX = 12, 6.5

Place = tuple[float, float]
_Box = tuple[float, float, float, float]

_LABEL_PLACES = (
    ("middle", 0.0, -10.0),
    ("middle", 0.0, 19.0),
    ("start", 10.0, 4.0),
    ("end", -10.0, 4.0),
    ("start", 7.0, -7.0),
    ("end", -7.0, -7.0),
    ("start", 7.0, 16.0),
    ("end", -7.0, 16.0),
)
"""Anchor and offset of a label from its point, the most readable first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A text beside a point, where there is room."""

    x: float
    y: float
    anchor: str
    text: str


class LabelPlacer:
    """Knows what of a chart is taken; labels stay between its edges."""

    def __init__(self, *, left: float, top: float, right: float, bottom: float) -> None:
        self._edges = (left, top, right, bottom)
        self._taken: list[_Box] = []

    def reserve_point(self, place: Place, radius: float) -> None:
        """Keep labels off a marker."""
        x, y = place
        self._taken.append((x - radius, y - radius, x + radius, y + radius))

    def reserve_line(self, start: Place, end: Place) -> None:
        """Keep labels off a line."""
        self._taken += _along(start, end)

    def place(self, point: Place, text: str) -> Label | None:
        """Return a label beside a point: above, below, right, left, or at a corner; None without room."""
        x, y = point
        width = len(text) * CHAR_WIDTH_PX
        for anchor, dx, dy in _LABEL_PLACES:
            left = x + dx - {"start": 0, "middle": width / 2, "end": width}[anchor]
            box = (left, y + dy - HEIGHT_PX + 2, left + width, y + dy + 1)
            if self._within(box) and not any(_overlap(box, other) for other in self._taken):
                self._taken.append(box)
                return Label(x=round(x + dx, 1), y=round(y + dy, 1), anchor=anchor, text=text)
        return None

    def _within(self, box: _Box) -> bool:
        left, top, right, bottom = self._edges
        return box[0] >= left and box[1] >= top and box[2] <= right and box[3] <= bottom


def _along(start: Place, end: Place) -> list[_Box]:
    """Small boxes along a line, close enough that no label fits between them."""
    (x0, y0), (x1, y1) = start, end
    steps = max(1, int(max(abs(x1 - x0), abs(y1 - y0)) / 5))
    middles = [(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps) for i in range(steps + 1)]
    return [(x - 1, y - 1, x + 1, y + 1) for x, y in middles]


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
