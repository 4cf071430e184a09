"""Shell completion of commands, options, choices, and model names, from the tables of the help.

click provides the scripts of the shells and their protocol; candidates are computed here, because
options follow getopt's rules.
"""

import http.client
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from tpx.cli.commands import COMMANDS, Exit, below, command_of
from tpx.cli.help import choices_of, options_of
from tpx.cli.messages import complain
from tpx.options import Field, nearest

VARIABLE = "_TPX_COMPLETE"
ASKING_S = 0.2
"""Timeout for asking a server for its models."""
_PLACES = ("FILE", "PATH", "DIR")
_SHELLS = ("bash", "zsh", "fish")
_FILES = {
    "bash": (".local/share/tpx/completion.bash", ".bashrc", 'source "{path}"'),
    "zsh": (
        ".local/share/tpx/completion.zsh",
        ".zshrc",
        '(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}; source "{path}"',
    ),
    "fish": (".config/fish/completions/tpx.fish", "", ""),  # fish loads it automatically
}
"""By shell: path of the script below the home directory, and the line of the start-up file that loads it."""


def main(argv: Sequence[str]) -> int:
    """Answer a completing shell, or show or install the completion script."""
    instruction = os.environ.get(VARIABLE, "")
    shell, _, what = instruction.partition("_")
    if instruction:
        if shell not in _SHELLS:
            return Exit.FAILED
        made = _make_shell_completion(shell)
        print(made.source() if what == "source" else made.complete())
        return Exit.OK
    flag, shell = [*argv, Path(os.environ.get("SHELL", "")).name][:2]
    if shell not in _SHELLS:
        message = (
            f"no completion for shell '{shell}'{nearest(shell, _SHELLS)}" if shell else "SHELL is not set"
        )
        complain(f"tpx {flag}: {message}: name one of {', '.join(_SHELLS)}")
        return Exit.FAILED
    source = _make_shell_completion(shell).source()
    print(source if flag == "--show-completion" else _install_script(shell, source))
    return Exit.OK


def _install_script(shell: str, source: str) -> str:
    """Write the script and make the shell load it; return what was done."""
    script, startup, line = _FILES[shell]
    path = Path.home() / script
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    if startup:
        rc, line = Path.home() / startup, line.format(path=path)
        text = rc.read_text(encoding="utf-8") if rc.exists() else ""
        if line not in text.splitlines():
            rc.write_text(text + "\n" * (not text.endswith("\n") and bool(text)) + line + "\n", "utf-8")
        return f"Wrote {path}, which ~/{startup} reads. Start a new {shell} to use it."
    return f"Wrote {path}. Start a new {shell} to use it."


def _make_shell_completion(name: str) -> ShellComplete:
    kind = get_completion_class(name)
    assert kind is not None, name

    class Ours(kind):  # type: ignore[valid-type, misc]
        def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
            return list(candidates(args, incomplete))

    made: ShellComplete = Ours(click.Command("tpx"), {}, "tpx", VARIABLE)
    return made


def candidates(args: Sequence[str], incomplete: str) -> Iterator[CompletionItem]:
    """Yield completions of the incomplete word after these arguments."""
    words, incomplete, lead = _split_value(args, incomplete)
    path = command_of(words)
    fields = options_of(COMMANDS[path]) if path in COMMANDS else []
    by_spelling = {name: field for field in fields for name in field.spellings}
    before = by_spelling.get(words[-1]) if words else None
    if before is not None and not before.is_switch:
        yield from _complete_value(before, fields, words, incomplete, lead)
    elif incomplete.startswith("-"):
        yield from _complete_flag(path, fields, incomplete)
    else:
        if len(words) == len(path):
            for name in below(path):
                if name.startswith(incomplete):
                    yield CompletionItem(name, help=COMMANDS[(*path, name)].summary)
        for field in fields:
            if field.option.positional:
                yield from _complete_value(field, fields, words, incomplete, lead)


def _split_value(args: Sequence[str], incomplete: str) -> tuple[list[str], str, str]:
    """Split --name=value: the arguments before the value, the partial value, and the prefix before it."""
    words = list(args)
    if words[-1:] == ["="]:  # bash splits it into three words
        return words[:-1], incomplete, ""
    if incomplete == "=":
        return words, "", ""
    if incomplete.startswith("--") and "=" in incomplete:
        name, _, value = incomplete.partition("=")
        return [*words, name], value, f"{name}="
    return words, incomplete, ""


def _complete_flag(
    path: tuple[str, ...], fields: Sequence[Field], incomplete: str
) -> Iterator[CompletionItem]:
    help_texts = {field.flag: field.option.help for field in fields if not field.option.positional}
    help_texts |= {"--help": "the options that most people use"}
    help_texts |= {"--help-all": "all options"} if path else {"--version": "print the version"}
    for name, help_ in help_texts.items():
        if name.startswith(incomplete):
            yield CompletionItem(name, help=help_)


def _complete_value(
    field: Field, fields: Sequence[Field], words: Sequence[str], incomplete: str, lead: str
) -> Iterator[CompletionItem]:
    """Return the values that an option accepts: choices, models, or files."""
    found = choices_of(field)
    head, comma, tail = "", "", incomplete
    if field.option.completes in _NAMES:
        if field.repeatable:
            head, comma, tail = incomplete.rpartition(",")
        found = _NAMES[field.option.completes](fields, words)
    elif field.item_type is Path or field.option.completes == "files" or field.option.metavar in _PLACES:
        yield CompletionItem(incomplete, type="file")
        return
    for name in found:
        if name.startswith(tail):
            yield CompletionItem(f"{lead}{head}{comma}{name}")


def _find_value(fields: Sequence[Field], words: Sequence[str], name: str) -> str | None:
    """Return the last value that the words give an option."""
    spellings = next((field.spellings for field in fields if field.name == name), ())
    value = None
    for word, behind in zip(words, [*words[1:], ""], strict=True):
        flag, equals, text = word.partition("=")
        if flag in spellings:
            value = text if equals else behind
    return value


def _list_repository_models(fields: Sequence[Field], words: Sequence[str]) -> list[str]:
    directory = Path(_find_value(fields, words, "model_repository") or "models")
    try:
        return sorted(entry.name for entry in directory.iterdir() if entry.is_dir() and entry.name[0] != ".")
    except OSError:
        return []


def _list_server_models(fields: Sequence[Field], words: Sequence[str]) -> list[str]:
    url = _find_value(fields, words, "url") or "localhost:8000"
    host = url.removeprefix("http://").partition("/")[0]
    try:
        with closing(http.client.HTTPConnection(host, timeout=ASKING_S)) as connection:
            connection.request("POST", "/v2/repository/index", b"{}")
            index = json.load(connection.getresponse())
        return sorted({entry["name"] for entry in index})
    except (OSError, ValueError, http.client.HTTPException, KeyError, TypeError):
        return []


_NAMES: dict[str, Callable[[Sequence[Field], Sequence[str]], list[str]]] = {
    "models": _list_repository_models,
    "served models": _list_server_models,
}
