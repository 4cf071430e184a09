"""Command-line arguments as the values of a config's options.

Spellings follow getopt_long, as tritonserver and perf_analyzer do: `--name value`, `--name=value`,
unambiguous prefixes, `-b4`, `-b 4`, `--` before words that are no options. A bool takes an optional value
(true, on, 1, false, off, 0); a tuple field is repeatable; unknown names fail with the nearest known one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tpx.errors import UsageError
from tpx.options import FALSE_WORDS, TRUE_WORDS, Field, Given, Options, build, fields_of, nearest, read_texts

C = TypeVar("C", bound=Options)


def from_argv(config: type[C], argv: Sequence[str], base: Mapping[str, object] | None = None) -> C:
    """Return a config from command-line arguments; they override values in `base`, as of a YAML file."""
    return build(config, {**(base or {}), **given_in_argv(config, argv)})


def given_in_argv(config: type, argv: Sequence[str]) -> dict[str, Any]:
    """Return the values in command-line arguments, by field."""
    return {name: given.value for name, given in read_argv(config, argv).items()}


def read_argv(config: type, argv: Sequence[str]) -> dict[str, Given]:
    """Return the options in command-line arguments, by field."""
    return read_texts(texts_in_argv(fields_of(config), argv))


def texts_in_argv(fields: Sequence[Field], argv: Sequence[str]) -> Iterable[tuple[Field, str, str]]:
    """Yield the options in command-line arguments with the spelling used and the text of the value."""
    return _Words(fields, argv).pairs()


_ADDRESS = re.compile(r"(\w+://)?[^\s/]+:\d+(/\S*)?|\w+://\S+")


class _Words:
    """Command-line arguments, matched with the known options."""

    def __init__(self, fields: Sequence[Field], argv: Sequence[str]) -> None:
        self._argv = list(argv)
        self._positionals = [f for f in fields if f.option.positional]
        self._by_spelling = {s: f for f in fields if not f.option.positional for s in f.spellings}

    def pairs(self) -> Iterable[tuple[Field, str, str]]:
        """Yield (field, spelling used, text of its value)."""
        words = list(reversed(self._argv))
        positionals = list(self._positionals)
        options = True
        while words:
            word = words.pop()
            if word == "--" and options:
                options = False
            elif options and word.startswith("--"):
                field, spelling, text = self._match_long(word, words)
                yield field, spelling, text
                while field.option.several and words and not words[-1].startswith("-"):
                    yield field, spelling, words.pop()
            elif options and word.startswith("-") and len(word) > 1:
                yield self._match_short(word, words)
            elif positionals:
                field = positionals[0]
                if not field.repeatable:
                    positionals.pop(0)
                yield field, field.option.metavar or field.name, word
            else:
                raise UsageError(f"Unknown command-line argument '{word}': {self._explain_stray(word)}")

    def _explain_stray(self, word: str) -> str:
        url = self._by_spelling.get("--url")
        if url is not None and _ADDRESS.fullmatch(word):
            return f"the server's address is given with {min(url.spellings, key=len)} {word}"
        return "options start with '--'"

    def _match_long(self, word: str, words: list[str]) -> tuple[Field, str, str]:
        name, equals, text = word.partition("=")
        name = name.replace("_", "-")
        field, negated = self._find_option(name)
        if negated and equals:
            raise UsageError(f"Option '{name}' takes no value")
        if negated or equals:
            return field, name, "false" if negated else text
        return field, name, self._take_value(field, name, words)

    def _find_option(self, name: str) -> tuple[Field, bool]:
        field = self._by_spelling.get(name)
        if field is not None:
            return field, False
        if name.startswith("--no-"):
            positive = self._by_spelling.get("--" + name[5:])
            if positive is not None and positive.is_switch:
                return positive, True
        starting = {f.name: f for s, f in self._by_spelling.items() if s.startswith(name)}
        if len(starting) == 1:
            return next(iter(starting.values())), False
        if starting:
            flags = ", ".join(f.flag for f in starting.values())
            raise UsageError(f"Option '{name}' is ambiguous: {flags}")
        raise UsageError(f"Invalid long option '{name}'{nearest(name, self._by_spelling)}")

    def _match_short(self, word: str, words: list[str]) -> tuple[Field, str, str]:
        name = word[:2]
        field = self._by_spelling.get(name)
        if field is None:
            meant = nearest("-" + word, self._by_spelling) if len(word) > 2 else ""  # a missing dash
            raise UsageError(f"Invalid short option '{name}'{meant}")
        attached = word[2:].removeprefix("=")
        if attached and field.is_switch:
            words.append("-" + attached)
            return field, name, "true"
        return field, name, attached or self._take_value(field, name, words)

    def _take_value(self, field: Field, name: str, words: list[str]) -> str:
        """Return the next argument if the option needs one; a switch takes it only if it is a boolean."""
        boolean = field.item_type is bool or field.option.counted
        if boolean and not (words and words[-1].lower() in TRUE_WORDS | FALSE_WORDS):
            return "true"
        if not words or (field.option.several and words[-1].startswith("-")):
            raise UsageError(f"Missing value for option '{name}'")
        return words.pop()
