"""`--show-config`: the options of a command as a YAML file that says where each comes from."""

import re
from collections.abc import Mapping
from dataclasses import MISSING
from enum import Enum
from pathlib import Path

import yaml

from tpx.options import Field, Given, fields_of
from tpx.sources import HIDDEN

_COLUMN = 44
"""Place of the comments in a shown configuration."""
_SECRET = "(password|secret|token(?!s)|api[_-]?key)"
_CREDENTIALS = re.compile(
    rf"(?<=://)[^/@\s]+(?=@)|(?<![\w.-])(?P<name>[\w.-]*{_SECRET}[\w.-]*=)[^,\s]+"
    r"|(?P<header>\b(authorization|cookie|[\w-]*api-?key)\s*:\s*)(?!\*).+",
    re.I,
)
"""Credentials in a URL, and the values of settings and headers that have them."""


def describe_options(config: type, given: Mapping[str, Given]) -> str:
    """Return all options as a YAML file that says where each comes from.

    Defaults are comments, and so is a value with credentials, which are hidden.
    """
    lines, section = [], ""
    for field in fields_of(config):
        if not field.option.setting:
            continue
        if field.section != section:
            section = field.section
            lines += ["", f"# {section}"]
        known = given.get(field.name)
        value = _to_yaml(field, known)
        shown = _mask(field, value)
        usable = known and shown == value and field.name != "config_file"
        entry = f"{'' if usable else '# '}{field.name}: {_write_yaml(shown)}"
        lines.append(f"{entry:<{_COLUMN}}  # {known.place if known else 'default'}")
    return "\n".join(lines[1:]) + "\n"


def _to_yaml(field: Field, given: Given | None) -> object:
    """Return a value as YAML has it, or the text that it was read from."""
    default = None if field.default is MISSING else field.default
    value = default if given is None else given.value
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Path | Enum):
        return str(value) if isinstance(value, Path) else value.value
    if given is None and isinstance(value, tuple):
        return [each if isinstance(each, str | int | float) else str(each) for each in value]
    if given is None:
        return field.option.default_text or (value and str(value))
    if field.option.read is not None:
        return _read_value(given.texts[-1])
    return list(given.texts) if field.repeatable else given.texts[0]


def _read_value(text: str) -> object:
    """Return a value that may be more than text: maps and lists are written as YAML in flags, too."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _write_yaml(value: object) -> str:
    text = "" if value is None else yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return text.removesuffix("...\n").strip()


def _mask(field: Field, value: object) -> object:
    if isinstance(value, list):
        return [_mask(field, each) for each in value]
    if isinstance(value, dict):
        return {k: HIDDEN if re.search(_SECRET, str(k), re.I) else _mask(field, v) for k, v in value.items()}
    if not isinstance(value, str):
        return value
    shown = field.option.mask(value) if field.option.mask else value
    return _CREDENTIALS.sub(lambda found: f"{found['name'] or found['header'] or ''}{HIDDEN}", shown)
