"""HTML pages of the server, which may talk to this server only."""

import base64


def build_page(name: str, *parts: str, product: str = "serve", **values: object) -> tuple[bytes, bytes]:
    """Return headers and body; the content security policy allows exactly the page's style and script.

    `parts` are the style sheets and scripts that come before the page's own.
    """
    from tpx.report.html import page_style, render_page  # late: few servers are looked at

    style, script = page_style(*parts, name)
    html = render_page(name, style, script, product=product, **values)
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
    import hashlib

    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
