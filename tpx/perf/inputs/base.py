"""The settings of what requests carry."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tpx.perf.clients.model import TensorSpec
from tpx.perf.settings import Shape, refuse
from tpx.protocol.datatypes import BY_NAME

SourceKind = Literal["zero", "random", "ones", "range", "file", "bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSource:
    """One `--input NAME=SOURCE`: `low` and `high` are the bounds of a range, `path` that of a file."""

    name: str
    kind: SourceKind
    low: float = 0
    high: float = 1
    path: Path = Path()

    def __str__(self) -> str:
        if self.kind == "range":
            return f"{self.name}=range:{self.low:g}:{self.high:g}"
        return f"{self.name}={self.kind}" + (f":{self.path}" if self.kind == "file" else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSettings:
    """Where inputs come from: the user's files, else made by us as `kind` says; `sources` says otherwise of
    single inputs."""

    kind: Literal["zero", "random"] = "random"
    files: tuple[Path, ...] = ()
    sources: Mapping[str, InputSource] = field(default_factory=dict)
    batch_size: int = 1
    shapes: tuple[Shape, ...] = ()
    string_length: int = 128
    string_data: str | None = None
    seed: int = 0


def parse_declaration(text: str) -> TensorSpec:
    """`name:datatype:d,d`, split at the last two colons; -1 is an open dimension."""
    flag = "--declare"
    name, datatype, dims = [*text.rsplit(":", 2), "", ""][:3]
    if not name or datatype.upper() not in BY_NAME:
        refuse(
            flag,
            f"The value '{text}' does not match <name>:<datatype>:<d,d>. The datatypes are "
            f"{', '.join(BY_NAME)}.",
        )
    try:
        shape = tuple(int(part) for part in dims.split(","))
    except ValueError:
        refuse(flag, f"The dimensions of '{text}' are no numbers.")
    if any(dim < 1 and dim != -1 for dim in shape):
        refuse(flag, f"The dimensions of '{text}' must be > 0, or -1 where they are open.")
    return TensorSpec(name=name, datatype=datatype.upper(), shape=shape)


def parse_source(text: str) -> InputSource:
    """`name=zero|random|ones|bytes`, `name=range:low:high`, `name=file:path`."""
    flag = "--input"
    name, equals, rest = text.partition("=")
    if not name or not equals:
        refuse(flag, f"The value '{text}' does not match <name>=<source>.")
    kind, _, argument = rest.partition(":")
    if kind == "file" and argument:
        return InputSource(name=name, kind="file", path=Path(argument))
    if kind == "range":
        low, _, high = argument.partition(":")
        try:
            source = InputSource(name=name, kind="range", low=_number(low), high=_number(high))
        except ValueError:
            refuse(flag, f"The value '{text}' does not match <name>=range:<low>:<high>.")
        if not float("-inf") < source.low <= source.high < float("inf"):
            refuse(flag, f"The range of '{text}' must be finite, and its low end not above its high one.")
        return source
    for plain in ("zero", "random", "ones", "bytes"):
        if rest == plain:
            return InputSource(name=name, kind=plain)
    choices = "'zero', 'random', 'ones', 'bytes', 'range:LOW:HIGH' or 'file:PATH'"
    return refuse(flag, f"Unsupported source provided: '{rest}'. The available options are {choices}.")


def _number(text: str) -> float:
    """Integers stay what they are, as floats have not all of them."""
    try:
        return int(text)
    except ValueError:
        return float(text)
