"""Commands and options as click's: their help pages, and what completion offers.

`--help` shows the common options, `--help-all` all of them, and `--help WORD` those of a section, or
those whose name or text contains the word.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from tpx.argv import texts_in_argv
from tpx.cli.commands import COMMANDS, MEANINGS, Command, Exit, below
from tpx.cli.messages import complain
from tpx.errors import UsageError
from tpx.options import Field, fields_of, nearest
from tpx.sources import variable_of

PURPOSE = "Serve models, measure how fast they are served, find the configuration that serves them best."
COLUMN_SHARE = 0.4
COLUMN_MOST = 40
WIDTH_LEAST = 40
WITH_VARIABLES = {
    ("serve",),
    ("perf",),
    *(("analyze", name) for name in ("profile", "plan", "doctor", "report")),
}
"""Commands that read environment variables."""
PLACES = ("FILE", "PATH", "DIR")

Row = tuple[str, str]
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def show(path: tuple[str, ...], *, topic: str = "", whole: bool = False) -> int:
    """Print the help of a command or group; return 1 if nothing matches the topic."""
    fields = options_of(COMMANDS[path]) if path in COMMANDS else []
    if topic:
        fields = _find_options(fields, topic)
        if not fields:
            _complain_no_match(path, topic)
            return Exit.FAILED
    elif not whole:
        fields = [field for field in fields if field.option.common] or fields
    page = _Page()
    page.usage(path, options_of(COMMANDS[path]) if path in COMMANDS else [])
    if path not in COMMANDS:
        page.text(PURPOSE)
    elif not topic:
        command = COMMANDS[path]
        page.text(command.summary, command.details)
        page.examples(command.examples)
    page.options(CommandNode(path, fields, show_variables=whole or bool(topic)))
    if not topic:
        page.rows(
            "Commands", [(" ".join(words[len(path) :]), each.summary) for words, each in _iter_commands(path)]
        )
        if path not in COMMANDS:
            page.rows("Options", _ROOT_OPTIONS)
        elif COMMANDS[path].config:
            page.rows("Exit codes", [(str(code.value), MEANINGS[code]) for code in COMMANDS[path].exits])
    page.text(_describe_hidden_options(path, shown=len(fields)))
    print(page.getvalue())
    return Exit.OK


_ROOT_OPTIONS: list[Row] = [
    ("-V, --version", "print the version"),
    ("--install-completion [SHELL]", "set up completion for bash, zsh or fish; your shell unless named"),
    ("--show-completion [SHELL]", "print the completion script instead"),
    ("-h, --help", "show this help"),
]


class CommandNode(click.Group):
    """A command with these options; those below it by name and summary only, since they import much."""

    def __init__(
        self,
        path: tuple[str, ...],
        fields: Sequence[Field],
        *,
        show_variables: bool = False,
        completes: Mapping[str, Complete] | None = None,
    ) -> None:
        """Make the command at a path; `completes` offers the values of an option by its Option.completes."""
        named = {name: click.Command(name, short_help=COMMANDS[*path, name].summary) for name in below(path)}
        extra = ("--help-all", "all options") if path else ("--version", "print the version")
        super().__init__(
            " ".join(("tpx", *path)),
            commands=named,
            params=[
                *(_make_parameter(field, completes or {}) for field in fields),
                click.Option([extra[0]], is_flag=True, help=extra[1]),
            ],
        )
        self.fields = fields
        for field, option in zip(fields, self.params, strict=False):
            if path in WITH_VARIABLES and field.option.setting and isinstance(option, click.Option):
                option.envvar, option.show_envvar = variable_of(path[0], field), show_variables

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (as click has it)
        """Return the names in the order of the table."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give the context the values before an incomplete word, by getopt's rules instead of click's."""
        super().parse_args(ctx, [])
        with suppress(UsageError):
            for field, _, text in texts_in_argv(self.fields, args):
                ctx.params[field.name] = text
        return []


def _make_parameter(field: Field, completes: Mapping[str, Complete]) -> click.Parameter:
    known, default = field.option, field.default
    more: dict[str, Any] = {"shell_complete": completes.get(known.completes)}
    if not field.is_switch:
        more |= {"metavar": _metavar_of(field), "type": _type_of(field)}
    if known.positional:
        return click.Argument([field.name], nargs=-1 if field.repeatable else 1, **more)
    negation = f"/--no-{field.flag[2:]}" if field.is_switch and default is True else ""
    return click.Option(
        [field.name, field.flag + negation, *known.names],
        is_flag=field.is_switch,
        multiple=field.repeatable,
        required=default is MISSING,
        default=None if default in (MISSING, "", ()) else default,
        show_default=known.default_text or not field.is_switch,
        help=known.help,
        **more,
    )


def _type_of(field: Field) -> "click.ParamType[Any]":
    """Return the type of a value: of a number with the bounds that the help shows."""
    known, choices = field.option, choices_of(field)
    if choices:
        return click.Choice(choices)
    if field.item_type is Path or known.completes == "files" or known.metavar in PLACES:
        return click.Path()
    least = known.minimum if known.above is None else known.above
    if least is not None or known.maximum is not None:
        return click.FloatRange(least, known.maximum, min_open=known.above is not None)
    return click.STRING


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
    also = " --help-all shows their environment variables." if path in WITH_VARIABLES else ""
    return (
        f"{shown} of {total} options. For all of them: {name} --help-all. For a section or a topic: "
        f"{name} --help WORD. Sections: {sections}.{also}"
    )


class _Page(click.HelpFormatter):
    """A help page in the width and the colors of the terminal."""

    def __init__(self) -> None:
        super().__init__(width=max(WIDTH_LEAST, shutil.get_terminal_size().columns))
        forced = os.environ.get("FORCE_COLOR", "0") not in ("", "0")
        terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._coloured = (forced or terminal) and not os.environ.get("NO_COLOR")

    def _style(self, text: str, **how: Any) -> str:
        return click.style(text, **how) if self._coloured else text

    def usage(self, path: tuple[str, ...], fields: Sequence[Field]) -> None:
        words = ["[OPTIONS]", *(_format_positional(field) for field in fields if field.option.positional)]
        usage = " ".join(words if fields else ["COMMAND"])
        self.write_usage(" ".join(("tpx", *path)), usage, prefix=self._style("Usage:", bold=True) + " ")

    def text(self, *paragraphs: str) -> None:
        for paragraph in filter(None, paragraphs):
            self.write_paragraph()
            self.write_text(paragraph)

    def examples(self, examples: Sequence[str]) -> None:
        if examples:
            with self.section("Examples"):
                self.write("".join(f"  {example}\n" for example in examples))

    def options(self, command: CommandNode) -> None:
        """Add a section per heading, in the order of the fields."""
        context = click.Context(command)
        sections: dict[str, list[Row]] = {}
        for field, parameter in zip(command.fields, command.params, strict=False):
            title = "Arguments" if field.option.positional else field.section
            row = None if field.option.positional else parameter.get_help_record(context)
            sections.setdefault(title, []).append(row or (_format_positional(field), field.option.help))
        for title, rows in sections.items():
            self.rows(title, rows)

    def rows(self, title: str, rows: Sequence[Row]) -> None:
        """Add two columns below a heading; the first is as wide as its cells require, within bounds."""
        if rows:
            most = min(COLUMN_MOST, round(self.width * COLUMN_SHARE))
            fitting = max((len(left) for left, _ in rows if len(left) <= most), default=most)
            with self.section(title):
                self.write_dl([(self._style(left, fg="cyan"), right) for left, right in rows], fitting)

    def write_heading(self, heading: str) -> None:
        """Write a heading in bold."""
        self.write(self._style(f"{heading}:", bold=True) + "\n")


def _format_positional(field: Field) -> str:
    shown = _metavar_of(field)
    more = "..." * (field.repeatable and " " not in shown)
    return (shown if field.default is MISSING else f"[{shown}]") + more


def _metavar_of(field: Field) -> str:
    return "|".join(choices_of(field)) or field.option.metavar or _METAVARS.get(field.item_type, "TEXT")


_METAVARS = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
