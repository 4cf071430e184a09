"""`--help`: pages generated from the table of commands and the options of their config dataclasses.

`--help` shows the common options, `--help-all` all of them, and `--help WORD` those of a section, or
those whose name or text contains the word.
"""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import MISSING
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args, get_origin

from tpx.cli.commands import COMMANDS, MEANINGS, Command, Exit, below
from tpx.cli.messages import complain
from tpx.options import Field, fields_of, nearest

PURPOSE = "Serve models, measure how fast they are served, find the configuration that serves them best."
COLUMN_SHARE = 0.4
COLUMN_MOST = 40
WIDTH_LEAST = 40
_BOLD, _CYAN, _PLAIN = "\033[1m", "\033[36m", "\033[0m"

Row = tuple[str, str]


def show(path: tuple[str, ...], *, topic: str = "", whole: bool = False) -> int:
    """Print the help of a command or group; return 1 if nothing matches the topic."""
    page = _Page()
    fields = options_of(COMMANDS[path]) if path in COMMANDS else []
    if topic:
        fields = _find_options(fields, topic)
        if not fields:
            _complain_no_match(path, topic)
            return Exit.FAILED
    elif not whole:
        fields = [field for field in fields if field.option.common] or fields
    page.usage(path)
    if path not in COMMANDS:
        page.text(PURPOSE)
    elif not topic:
        command = COMMANDS[path]
        page.text(command.summary, command.details)
        page.examples(command.examples)
    page.options(fields)
    if not topic:
        page.rows(
            "Commands", [(" ".join(words[len(path) :]), each.summary) for words, each in _iter_commands(path)]
        )
        if path not in COMMANDS:
            page.rows("Options", _ROOT_OPTIONS)
        elif COMMANDS[path].config:
            page.rows("Exit codes", [(str(code.value), MEANINGS[code]) for code in COMMANDS[path].exits])
    page.text(_describe_hidden_options(path, shown=len(fields)))
    print("\n".join(page.lines))
    return Exit.OK


_ROOT_OPTIONS: list[Row] = [
    ("-V, --version", "print the version"),
    ("--install-completion [SHELL]", "set up completion for bash, zsh or fish; your shell unless named"),
    ("--show-completion [SHELL]", "print the completion script instead"),
    ("-h, --help", "show this help"),
]


def options_of(command: Command) -> list[Field]:
    """Return the options of a command; imports its config."""
    if not command.config:
        return []
    module, _, name = command.config.partition(":")
    return fields_of(getattr(import_module(module), name))


def choices_of(field: Field) -> list[str]:
    """Return the choices of an option, if they are listed."""
    given = get_args(field.item_type) if get_origin(field.item_type) is Literal else ()
    return [str(choice) for choice in given if choice != ""]


def _iter_commands(path: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], Command]]:
    """Return the commands of a group; at the top also subcommands of commands that have options."""
    for words, command in COMMANDS.items():
        if words[: len(path)] == path and len(words) > len(path):
            parent = words[:-1]
            if parent == path or COMMANDS[parent].config:
                yield words, command


def _find_options(fields: Sequence[Field], topic: str) -> list[Field]:
    """Return the options of sections whose titles contain the topic, else options that contain it."""
    word = topic.lower()
    found = [field for field in fields if word == field.section.lower()]
    found = found or [field for field in fields if word in field.section.lower()]
    dashed = word.lstrip("-").replace("_", "-").replace(" ", "-")
    return found or [
        field
        for field in fields
        if any(dashed in name for name in field.spellings) or word in field.option.help.lower()
    ]


def _list_sections(path: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(field.section for field in options_of(COMMANDS[path])))


def _complain_no_match(path: tuple[str, ...], topic: str) -> None:
    if path not in COMMANDS or not COMMANDS[path].config:
        complain(f"tpx: no command '{topic}'{nearest(topic, below(path))}")
        return
    sections = [section.lower() for section in _list_sections(path)]
    name, near = " ".join(("tpx", *path)), nearest(topic.lower(), sections)
    complain(f"{name}: no section or option about '{topic}'{near}\nsections: {', '.join(sections)}")


def _describe_hidden_options(path: tuple[str, ...], *, shown: int) -> str:
    """Return how to see the options that are not shown."""
    name = " ".join(("tpx", *path))
    if path not in COMMANDS or not COMMANDS[path].config:
        return f"More about a command: {name} COMMAND --help"
    total = len(options_of(COMMANDS[path]))
    if shown == total:
        return ""
    sections = ", ".join(section.lower() for section in _list_sections(path))
    return (
        f"{shown} of {total} options. For all of them: {name} --help-all. For a section or a topic: "
        f"{name} --help WORD. Sections: {sections}."
    )


class _Page:
    """The lines of a help page, in the width and colors of the terminal."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._width = max(WIDTH_LEAST, shutil.get_terminal_size().columns)
        forced = os.environ.get("FORCE_COLOR", "0") not in ("", "0")
        terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._coloured = (forced or terminal) and not os.environ.get("NO_COLOR")

    def usage(self, path: tuple[str, ...]) -> None:
        words = ["tpx", *path]
        if path not in COMMANDS or not COMMANDS[path].config:
            words.append("COMMAND")
        else:
            fields = options_of(COMMANDS[path])
            words += [
                "[OPTIONS]",
                *(_format_positional(field) for field in fields if field.option.positional),
            ]
        self.lines += [f"{self._format_bold('Usage:')} {' '.join(words)}", ""]

    def text(self, *paragraphs: str) -> None:
        for paragraph in filter(None, paragraphs):
            self.lines += [*_wrap_text(paragraph, self._width), ""]

    def examples(self, examples: Sequence[str]) -> None:
        if examples:
            self.lines += [self._format_bold("Examples:"), *(f"  {example}" for example in examples), ""]

    def options(self, fields: Sequence[Field]) -> None:
        """Add a section per heading, in the order of the fields."""
        sections: dict[str, list[Row]] = {}
        for field in fields:
            title = "Arguments" if field.option.positional else field.section
            sections.setdefault(title, []).append(_format_row(field))
        for title, rows in sections.items():
            self.rows(title, rows)

    def rows(self, title: str, rows: Sequence[Row]) -> None:
        """Add two columns below a heading; the first is as wide as its cells require, within bounds."""
        if not rows:
            return
        most = min(COLUMN_MOST, round(self._width * COLUMN_SHARE))
        column = max((len(left) for left, _ in rows if len(left) <= most), default=most - 4) + 4
        self.lines.append(self._format_bold(f"{title}:"))
        for left, right in rows:
            lines = _wrap_text(right, self._width - column)
            shown = f"  {_CYAN}{left}{_PLAIN}" if self._coloured else f"  {left}"
            if len(left) + 4 <= column:
                shown += " " * (column - len(left) - 2) + (lines.pop(0) if lines else "")
            self.lines += [shown, *(" " * column + line for line in lines)]
        self.lines.append("")

    def _format_bold(self, text: str) -> str:
        return f"{_BOLD}{text}{_PLAIN}" if self._coloured else text


def _wrap_text(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _format_row(field: Field) -> Row:
    """Return the spellings of an option and its help."""
    if field.option.positional:
        return _format_metavar(field), field.option.help
    spelled = ", ".join(sorted(field.spellings, key=lambda name: (name.startswith("--"), name != field.flag)))
    if not field.is_switch:
        spelled += f" {_format_metavar(field)}"
    return spelled, field.option.help + _format_default(field)


def _format_metavar(field: Field) -> str:
    given = field.option.metavar or _METAVARS.get(field.item_type, "TEXT")
    return "|".join(choices_of(field)) or given


def _format_positional(field: Field) -> str:
    shown = _format_metavar(field)
    more = "..." * (field.repeatable and " " not in shown)
    return (shown if field.default is MISSING else f"[{shown}]") + more


_METAVARS = {int: "INTEGER", float: "NUMBER", Path: "PATH"}


def _format_default(field: Field) -> str:
    default = field.default
    if default is MISSING:
        return " [required]"
    if field.is_switch:
        return " [on; --no-" + field.flag[2:] + " turns it off]" if default else ""
    if default is None or default in ("", ()):
        return ""
    text = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    text = field.option.default_text or text
    return f" [default: {text}]" if text else ""
