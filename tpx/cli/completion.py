"""Shell completion of commands, options, choices, and model names, by click."""

import http.client
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from tpx.cli.commands import COMMANDS, Exit, command_of
from tpx.cli.help import CommandNode, options_of
from tpx.cli.messages import complain
from tpx.options import nearest

VARIABLE = "_TPX_COMPLETE"
ASKING_S = 0.2
"""Timeout for asking a server for its models."""
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
            return candidates(args, incomplete)

    made: ShellComplete = Ours(click.Command("tpx"), {}, "tpx", VARIABLE)
    return made


def candidates(args: Sequence[str], incomplete: str) -> list[CompletionItem]:
    """Return completions of the incomplete word after these arguments."""
    words, name, equals = list(args), "", ""
    if words[-1:] == ["="]:  # bash splits --name=value into three words
        words.pop()
    elif incomplete.startswith("--"):  # zsh and fish do not, and replace all of it
        name, equals, _ = incomplete.partition("=")
    path = command_of(words)
    node = CommandNode(path, options_of(COMMANDS[path]) if path else (), completes=_MODELS)
    found = ShellComplete(node, {}, "tpx", VARIABLE).get_completions(words[len(path) :], incomplete)
    for item in found:
        if equals and item.type == "plain":
            item.value = f"{name}={item.value}"
    return found


def _complete_models(
    find: Callable[[Mapping[str, Any]], list[str]],
    context: click.Context,
    parameter: click.Parameter,
    incomplete: str,
) -> list[CompletionItem]:
    """Return the names of models; in a list, those that may follow its last comma."""
    head, comma, tail = incomplete.rpartition(",") if parameter.multiple else ("", "", incomplete)
    names = find(context.params)
    return [CompletionItem(f"{head}{comma}{name}") for name in names if name.startswith(tail)]


def _list_repository_models(params: Mapping[str, Any]) -> list[str]:
    directory = Path(params.get("model_repository") or "models")
    try:
        return sorted(entry.name for entry in directory.iterdir() if entry.is_dir() and entry.name[0] != ".")
    except OSError:
        return []


def _list_server_models(params: Mapping[str, Any]) -> list[str]:
    host = (params.get("url") or "localhost:8000").removeprefix("http://").partition("/")[0]
    try:
        with closing(http.client.HTTPConnection(host, timeout=ASKING_S)) as connection:
            connection.request("POST", "/v2/repository/index", b"{}")
            index = json.load(connection.getresponse())
        return sorted({entry["name"] for entry in index})
    except (OSError, ValueError, http.client.HTTPException, KeyError, TypeError):
        return []


_MODELS = {
    "models": partial(_complete_models, _list_repository_models),
    "served models": partial(_complete_models, _list_server_models),
}
