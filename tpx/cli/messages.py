"""Messages for the user: wrapped between words on a terminal, unchanged in a file or a pipe."""

import codecs
import io
import sys
from typing import TYPE_CHECKING, TextIO

from tpx.report.strangers import harmless

if TYPE_CHECKING:
    from rich.console import RenderableType


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the width in columns of the terminal behind `stream` (default: stdout); None for a file or
    a pipe.
    """
    out = sys.stdout if stream is None else stream
    if not out.isatty():
        return None
    import shutil  # late: it imports three compression libraries

    return shutil.get_terminal_size().columns


_SPELLED = {"\u00b5": "u", "\u00b1": "+-", "\u00b7": "-", "\u2026": "..."}


def spell_missing_characters() -> None:
    """Let stdout and stderr write `us` for `µs`, and escapes for other characters that they cannot encode."""
    codecs.register_error("tpx.spell", _spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="tpx.spell")


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    known = (_SPELLED.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in signs)
    return "".join(known), error.end


def fitted(text: str, width: int | None) -> str:
    """Wrap lines wider than `width` between words; continuation lines are indented by two more columns.
    Control characters are escaped.
    """
    text = harmless(text)
    if width is None or all(len(line) <= width for line in text.split("\n")):
        return text
    import textwrap  # late: a run into a pipe does not need it

    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip(" ")) + 2)
        broken = textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        lines += broken or [line]
    return "\n".join(lines)


def complain(text: str) -> None:
    """Print an error, a warning or a note to stderr."""
    print(fitted(text, terminal_width(sys.stderr)), file=sys.stderr, flush=True)


def show(*shown: "RenderableType") -> None:
    """Print tables and lines to stdout, wrapped only on a terminal."""
    from rich.console import Console  # late, as above
    from rich.text import Text

    width = None if sys.stdout.isatty() else 10_000
    console = Console(markup=False, emoji=False, highlight=False, width=width)
    with console.capture() as captured:
        for each in shown:
            console.print(each, soft_wrap=isinstance(each, Text))
    for line in captured.get().splitlines():
        print(line.rstrip())
