"""Rendering of templates: one HTML file that needs nothing else, and single charts as SVG."""

from pathlib import Path
from typing import TYPE_CHECKING

from tpx.errors import MeasurementError
from tpx.report.styles import COLORS, STYLES, TEXT_COLORS, marker

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"


def render(template: str, page: object) -> str:
    """The page that a template makes of its view model."""
    return (
        _environment()
        .get_template(template)
        .render(
            page=page,
            colors=COLORS,
            text_colors=TEXT_COLORS,
            markers=[marker(style, 7, 7) for style in range(STYLES)],
        )
    )


def render_svg(template: str, **values: object) -> str:
    """Return a drawing as an SVG document of its own."""
    drawn = _environment().get_template(template).render(colors=COLORS, text_colors=TEXT_COLORS, **values)
    return drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def write_html(page: str, path: Path) -> None:
    """Raises MeasurementError when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as exc:
        raise MeasurementError(f"cannot write {path}: {exc.strerror}") from exc


def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
