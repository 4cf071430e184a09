"""Self-contained HTML pages: one file with its style and script, which may talk to this server only."""

import base64
import hashlib
from importlib import resources

_TEMPLATES = resources.files("tpx").joinpath("templates")


def build_page(name: str, **context: object) -> tuple[bytes, bytes]:
    """Render a template with the script and style sheet of the same name, after `page.css`.

    Returns headers and body. The content security policy allows exactly this style and script.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(str(_TEMPLATES)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    base, own, script = (
        _TEMPLATES.joinpath(file).read_text(encoding="utf-8")
        for file in ("page.css", f"{name}.css", f"{name}.js")
    )
    style = base + own
    html = environment.get_template(f"{name}.html.j2").render(style=style, script=script, **context)
    headers = (
        "Content-Type: text/html; charset=utf-8\r\n"
        f"Content-Security-Policy: default-src 'none'; style-src {_hash_inline(style)}; "
        f"script-src {_hash_inline(script)}; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "X-Frame-Options: DENY\r\n"  # a page around it could make a person send requests
    )
    return headers.encode(), html.encode()


def _hash_inline(text: str) -> str:
    """Return a content security policy source that allows exactly this inline text."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
