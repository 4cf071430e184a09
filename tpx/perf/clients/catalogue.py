"""What a server has instead of a model that it does not know, so that whoever mistyped a name sees the right
one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from tpx.options import nearest
from tpx.perf.clients.model import ModelKey

MOST_NAMES = 20
READY = "READY"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """A model version in a server's repository index."""

    name: str
    version: str = ""
    state: str = ""
    """READY, UNAVAILABLE, ...; empty for what has never been loaded."""
    reason: str = ""


def index_entries(models: Iterable[Mapping[str, Any]]) -> tuple[IndexEntry, ...]:
    """From the answer to the index request of the v2 protocol's model repository extension."""
    return tuple(
        IndexEntry(
            name=str(model.get("name", "")),
            version=str(model.get("version", "")),
            # MLServer's index over gRPC has the name of an enumeration before it
            state=str(model.get("state", "")).removeprefix("State."),
            reason=str(model.get("reason", "")),
        )
        for model in models
    )


def instead(asked: ModelKey, index: Sequence[IndexEntry]) -> str:
    """What follows the server's words that it does not know `asked`; empty where the index tells nothing."""
    own = [entry for entry in index if entry.name == asked.name]
    if own:
        return _states(own)
    names = sorted({entry.name for entry in index if entry.state == READY})
    if not names:
        return "; the server has no model that is ready" if index else ""
    more = len(names) - MOST_NAMES
    if more > 0:
        names.sort(key=lambda name: SequenceMatcher(None, asked.name, name).ratio(), reverse=True)
    rest = f" and {more} more" if more > 0 else ""
    return f"{nearest(asked.name, names)}; the server has: {', '.join(names[:MOST_NAMES])}{rest}"


def _states(entries: Sequence[IndexEntry]) -> str:
    ready = [entry.version for entry in entries if entry.state == READY]
    if ready:
        named = ", ".join(filter(None, ready))
        return f"; the server has it in version {named}" if named else "; the server has it without versions"
    told = [f"{entry.state}: {entry.reason}" if entry.reason else entry.state for entry in entries]
    return f"; the server has it, but it is {' / '.join(told) if any(told) else 'not loaded'}"
