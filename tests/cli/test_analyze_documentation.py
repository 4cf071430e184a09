"""The table of options in docs/analyze.md is what the options are.

`TPX_WRITE_DOCS=1 pytest tests/cli/test_analyze_documentation.py` writes it anew.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_origin

from tpx.analyzer.options import ProfileSpec
from tpx.cli.analyze import COMMANDS
from tpx.options import Field, fields_of

PAGE = Path(__file__).parents[2] / "docs" / "analyze.md"
BEGIN, END = "<!-- options: written by a test -->\n", "<!-- end of options -->\n"


def default_of(field: Field) -> str:
    """A default as one would write it on a command line; empty where there is none."""
    default = field.default
    if default is None or default in ("", (), {}) or default is False:
        return ""
    if field.repeatable:
        return ",".join(map(str, default))
    return str(default).lower() if isinstance(default, bool) else str(default)


def values_of(field: Field) -> str:
    """What a value looks like, where that is not obvious."""
    if field.option.metavar:
        return field.option.metavar
    kind = field.item_type
    return "|".join(map(str, get_args(kind))) if get_origin(kind) is not None else ""


def rows() -> Iterator[str]:
    fields = fields_of(ProfileSpec)
    sections = list(dict.fromkeys(field.section for field in fields))
    for section in sections:
        yield f"\n### {section}\n\n| option | default | |\n| --- | --- | --- |\n"
        for field in fields:
            if field.section == section:
                yield row(field)


def row(field: Field) -> str:
    names = ", ".join(f"`{name}`" for name in field.spellings)
    values = values_of(field).replace("|", "\\|")
    words = field.option.help.replace("|", "\\|") + ("; changes nothing" if field.option.inert else "")
    default = f"`{default_of(field)}`" if default_of(field) else ""
    return f"| {names}{f' `{values}`' if values else ''} | {default} | {words} |\n"


def test_the_page_has_every_option_as_it_is() -> None:
    text = PAGE.read_text(encoding="utf-8")
    start, _, rest = text.partition(BEGIN)
    shown, _, end = rest.partition(END)
    table = "".join(rows()) + "\n"
    if os.environ.get("TPX_WRITE_DOCS"):
        PAGE.write_text(start + BEGIN + table + END + end, encoding="utf-8")
        shown = table
    assert shown == table, "write it anew: TPX_WRITE_DOCS=1 pytest tests/cli/test_analyze_documentation.py"


def test_the_page_has_every_command() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"| `{command}" in text, command
