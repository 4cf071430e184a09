"""Forwarding of request headers as inference request parameters, as in Triton.

A pattern matches anywhere in a header's name, ignoring case unless it begins with `(?-i)`. A header
overrides a body parameter of the same name: the gateway that adds the header is trusted over the client
behind it.
"""

import re
from collections.abc import Iterable, Mapping

from tpx.errors import InvalidRequest, UsageError
from tpx.protocol.http1.head import HttpHead

_RESERVED = frozenset(
    {
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
    }
)
_CASE_MATTERS = "(?-i)"


class HeaderForwarding:
    """Header name pattern of one endpoint."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def of_head(self, head: HttpHead) -> dict[str, str]:
        """Return the parameters in an HTTP head, spelled as the client wrote them. Raises InvalidRequest."""
        spelled: dict[str, bytes] = {}
        for line in reversed(head.raw.split(b"\r\n")[1:-2]):
            name = line.partition(b":")[0]
            spelled[name.lower().decode("latin-1")] = name  # lines are reversed: the first spelling wins
        names = [name.decode("latin-1") for name in reversed(spelled.values())]
        return {
            name: _decode_text(head.headers[name.lower().encode("latin-1")].strip())
            for name in self._select_names(names)
        }

    def of_metadata(self, metadata: Mapping[str, str | bytes]) -> dict[str, str]:
        """Return the parameters in a call's metadata, sorted by name as in Triton. Raises InvalidRequest."""
        return {name: _decode_text(metadata[name]) for name in self._select_names(sorted(metadata))}

    def _select_names(self, names: Iterable[str]) -> list[str]:
        chosen = [name for name in names if name and self._pattern.search(name)]
        for name in chosen:
            if name.lower() in _RESERVED or name.lower().startswith("triton_"):
                raise InvalidRequest(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
        return chosen


def parse_forwarding(flag: str, pattern: str) -> HeaderForwarding | None:
    """Compile a flag's regular expression; return None if it is empty. Raises UsageError."""
    if not pattern:
        return None
    case_matters = pattern.startswith(_CASE_MATTERS)
    try:
        compiled = re.compile(
            pattern.removeprefix(_CASE_MATTERS), re.NOFLAG if case_matters else re.IGNORECASE
        )
    except re.error as exc:
        raise UsageError(f"{flag}: '{pattern}' is not a regular expression: {exc}") from exc
    return HeaderForwarding(compiled)


def _decode_text(value: str | bytes) -> str:
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
