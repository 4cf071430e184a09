"""Styles of chart series: color (Okabe and Ito's palette for color-blind readers) and marker."""

STYLES = 7

COLORS = ("#0072b2", "#d55e00", "#009e73", "#b8578f", "#9a6b00", "#2b8fcf", "#4d4d4d")
"""Colors of lines and markers without a style sheet, as in a PDF; report.css repeats them and adds dark
ones.
"""

TEXT_COLORS = ("#00619a", "#b24e00", "#00795a", "#a3457b", "#855c00", "#1f79b3", "#4d4d4d")
"""Darker variants, because small text needs more contrast than a line."""

_PLUS: tuple[tuple[float, float], ...] = (
    (-1.5, -5), (1.5, -5), (1.5, -1.5), (5, -1.5), (5, 1.5), (1.5, 1.5),
    (1.5, 5), (-1.5, 5), (-1.5, 1.5), (-5, 1.5), (-5, -1.5), (-1.5, -1.5),
)  # fmt: skip


def marker(style: int, x: float, y: float) -> str:
    """Return the path of a marker: circle, square, triangle, diamond, cross, plus, inverted triangle."""
    outlines: tuple[tuple[tuple[float, float], ...], ...] = (
        (),
        ((-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)),
        ((0, -4.8), (4.4, 3.4), (-4.4, 3.4)),
        ((0, -5.2), (5.2, 0), (0, 5.2), (-5.2, 0)),
        tuple((px * 0.707 - py * 0.707, px * 0.707 + py * 0.707) for px, py in _PLUS),
        _PLUS,
        ((0, 4.8), (4.4, -3.4), (-4.4, -3.4)),
    )
    outline = outlines[style % STYLES]
    if not outline:
        return f"M{x - 4:g},{y:g} a4,4 0 1,0 8,0 a4,4 0 1,0 -8,0 Z"
    return "M" + " L".join(f"{round(x + dx, 1):g},{round(y + dy, 1):g}" for dx, dy in outline) + " Z"
