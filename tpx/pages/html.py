"""One HTML file that needs nothing else, and as PDF where WeasyPrint is there."""

from pathlib import Path
from typing import TYPE_CHECKING

from tpx.errors import MeasurementError, Unsupported
from tpx.pages.styles import COLORS, STYLES, TEXT_COLORS, marker

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


def write_html(page: str, path: Path) -> None:
    """Raises MeasurementError when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as exc:
        raise MeasurementError(f"cannot write {path}: {exc.strerror}") from exc


def require_pdf() -> None:
    """Raise Unsupported, saying what to install, where WeasyPrint or its libraries miss."""
    try:
        import weasyprint  # noqa: F401 (whether it can be loaded is the question)
    except ImportError as exc:
        raise Unsupported(
            "no PDF: WeasyPrint is not installed, add it with: pip install 'tpx[report]'"
        ) from exc
    except OSError as exc:
        raise Unsupported(
            f"no PDF: WeasyPrint lacks a system library ({exc}); on Debian and Ubuntu: "
            "apt-get install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0"
        ) from exc


def write_pdf(page: str, path: Path) -> None:
    """The page as PDF. Raises as `require_pdf`, and MeasurementError when the file cannot be written."""
    require_pdf()
    import weasyprint

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        weasyprint.HTML(string=page).write_pdf(path)
    except OSError as exc:
        raise MeasurementError(f"cannot write {path}: {exc.strerror or exc}") from exc


def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
