"""The options of a config dataclass as tables of a page: what it shows is what the options are."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_origin

from tpx.options import Field, fields_of
from tpx.sources import variable_of

BEGIN, END = "<!-- options: written by a test -->\n", "<!-- end of options -->\n"


def default_of(field: Field) -> str:
    """A default as one would write it on a command line; empty where there is none."""
    default = field.default
    if field.option.default_text:
        return field.option.default_text
    if default is None or default in ("", (), {}):
        return ""
    if field.repeatable:
        return ",".join(map(str, default))
    return str(default).lower() if isinstance(default, bool) else str(default)


def values_of(field: Field) -> str:
    """What a value looks like, where that is not obvious."""
    kind = field.item_type
    choices = [choice for choice in get_args(kind) if isinstance(choice, str | int) and choice != ""]
    if get_origin(kind) is not None and choices:
        return "|".join(map(str, choices))
    return field.option.metavar


def rows(config: type, command: str) -> Iterator[str]:
    """A table for each section."""
    fields = fields_of(config)
    sections = list(dict.fromkeys(field.section for field in fields))
    section = ""
    for field in sorted(fields, key=lambda field: sections.index(field.section)):
        option = field.option
        if option.positional:
            continue
        if field.section != section:
            section = field.section
            yield f"\n## {section}\n\n| option | variable | default | |\n| --- | --- | --- | --- |\n"
        names = ", ".join(f"`{name}`" for name in field.spellings)
        values = values_of(field).replace("|", "\\|")
        words = option.help.replace("|", "\\|") + ("; no effect" if option.inert else "")
        default = f"`{default_of(field)}`" if default_of(field) else ""
        variable = f"`{variable_of(command, field)}`" if option.setting else ""
        yield f"| {names}{f' `{values}`' if values else ''} | {variable} | {default} | {words} |\n"


def check_page(page: Path, config: type, command: str, test: str) -> None:
    """The page has every option as it is; TPX_WRITE_DOCS=1 writes it anew."""
    text = page.read_text(encoding="utf-8")
    start, _, rest = text.partition(BEGIN)
    shown, _, end = rest.partition(END)
    table = "".join(rows(config, command)) + "\n"
    if os.environ.get("TPX_WRITE_DOCS"):
        page.write_text(start + BEGIN + table + END + end, encoding="utf-8")
        shown = table
    assert shown == table, f"write it anew: TPX_WRITE_DOCS=1 pytest {test}"
