"""Access control: restricts parts of the API to requests that carry a key."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, cast, get_args

import msgspec

from tpx.errors import UsageError
from tpx.options import nearest

Category = Literal[
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
]
"""Parts of the API that can be restricted, named as in Triton."""
_OPENAI = ("inference", "metadata", "health")
"""Parts of OpenAI's API."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A header that a request must carry, and its value."""

    name: str
    value: str
    bearer: bool = False
    """True if `value` is a token, which follows the word Bearer in the header."""

    def fits(self, shown: bytes | None) -> bool:
        """Compare the header's value in constant time."""
        if shown is not None and self.bearer:
            scheme, _, shown = shown.partition(b" ")
            if scheme.lower() != b"bearer":
                return False
        import hmac  # late: few servers restrict access

        return shown is not None and hmac.compare_digest(shown, self.value.encode())


Restrictions = Mapping[Category, Key]
"""Keys that requests of the restricted categories must carry."""


def parse_restrictions(flag: str, groups: Sequence[str]) -> Restrictions | None:
    """Parse a flag's values, each `<category>,<category>:<key>=<value>`; return None if there are none. A
    value is the key itself, file:PATH, or env:NAME.

    Raises UsageError.
    """
    part = "protocol" if "grpc" in flag else "api"
    known: Sequence[str] = _OPENAI if "openai" in flag else get_args(Category)
    keys: dict[Category, Key] = {}
    for group in groups:
        words, colon, pair = group.partition(":")
        name, equals, value = pair.partition("=")
        bearer = "openai" in flag and name.lower() == "authorization"
        if bearer:
            value = value.removeprefix("Bearer ")  # which a key in a file or variable has not
        if not (words and colon and equals and value and _HEADER_NAME.fullmatch(name)):
            raise UsageError(
                f"{flag} option format is '<config name>:<setting>=<value>'. Got {group} (the setting is the "
                "name of a header)"
            )
        for word in words.split(","):
            if word not in known:
                raise UsageError(
                    f"{flag}: unknown restricted {part} '{word}'{nearest(word, known)} "
                    f"(known: {', '.join(known)})"
                )
            if word in keys:
                raise UsageError(
                    f"{flag}: restricted {part} '{word}' can not be specified in multiple config groups"
                )
            keys[cast("Category", word)] = Key(name=name, value=_read_value(flag, value), bearer=bearer)
    return keys or None


def _read_value(flag: str, value: str) -> str:
    """Return a key that is given itself, as file:PATH, or as env:NAME, where other users do not see it."""
    kind, colon, place = value.partition(":")
    if not colon or kind not in ("file", "env"):
        return value
    if kind == "env":
        text = os.environ.get(place, "")
    else:
        try:
            text = Path(place).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "it is not Unicode text"
            raise UsageError(f"{flag}: the key in '{place}' can not be read: {why}") from exc
    if not text:
        raise UsageError(f"{flag}: there is no key in {'variable' if kind == 'env' else 'file'} '{place}'")
    return text
