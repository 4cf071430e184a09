"""Options for the inputs of requests and for sequences, and the types of their values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from tpx.errors import UsageError
from tpx.options import Options, check_range, option, refuse
from tpx.perf.clients.model import TensorDescription
from tpx.perf.settings import Shape, parse_shape
from tpx.protocol.datatypes import BY_NAME

LAST_ID = 2**32 - 1
DEFAULT_LENGTH = 20

SourceKind = Literal["zero", "random", "ones", "range", "file", "bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSource:
    """One `--input NAME=SOURCE`; `low` and `high` are the bounds of a range, `path` is that of a file."""

    name: str
    kind: SourceKind
    low: float = 0
    high: float = 1
    path: Path = Path()

    def __str__(self) -> str:
        if self.kind == "range":
            return f"{self.name}=range:{self.low:g}:{self.high:g}"
        return f"{self.name}={self.kind}" + (f":{self.path}" if self.kind == "file" else "")


SharedMemoryKind = Literal["none", "system", "cuda"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Maximum difference from an expected value: `absolute` + `relative` times the expected value."""

    absolute: float = 0.0
    relative: float = 0.0

    def __str__(self) -> str:
        return f"{self.absolute:g},{self.relative:g}"


EXACT = Tolerance()


def parse_tolerance(text: str) -> Tolerance:
    """Parse `absolute,relative`, or `absolute` alone."""
    absolute, _, relative = text.partition(",")
    try:
        tolerance = Tolerance(float(absolute), float(relative or 0))
    except ValueError:
        refuse("--tolerance", f"The value '{text}' does not match <absolute>[,<relative>].")
    if not (0 <= tolerance.absolute < math.inf and 0 <= tolerance.relative < math.inf):
        refuse("--tolerance", "The values must be >= 0.")
    return tolerance


def parse_declaration(text: str) -> TensorDescription:
    """Parse `name:datatype:d,d`, split at the last two colons; -1 is a dynamic dimension."""
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
        refuse(flag, f"The dimensions of '{text}' are not numbers.")
    if any(dim < 1 and dim != -1 for dim in shape):
        refuse(flag, f"The dimensions of '{text}' must be > 0, or -1 if they are dynamic.")
    return TensorDescription(name=name, datatype=datatype.upper(), shape=shape)


def parse_source(text: str) -> InputSource:
    """Parse `name=zero|random|ones|bytes`, `name=range:low:high`, or `name=file:path`."""
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
            source = InputSource(name=name, kind="range", low=_parse_number(low), high=_parse_number(high))
        except ValueError:
            refuse(flag, f"The value '{text}' does not match <name>=range:<low>:<high>.")
        if not float("-inf") < source.low <= source.high < float("inf"):
            refuse(flag, f"The range of '{text}' must be finite, and its low end not above its high one.")
        return source
    if rest in ("zero", "random", "ones", "bytes"):
        return InputSource(name=name, kind=cast("SourceKind", rest))
    choices = "'zero', 'random', 'ones', 'bytes', 'range:LOW:HIGH' or 'file:PATH'"
    return refuse(flag, f"Unsupported source provided: '{rest}'. The available options are {choices}.")


def _parse_number(text: str) -> float:
    """Parse a number; integers stay int, because a float cannot represent all of them."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def parse_data(text: str) -> str:
    """Parse `zero`, `random`, or an existing path."""
    if text.lower() in ("zero", "random"):
        return text.lower()
    if not Path(text).exists():
        refuse(
            "--input-data",
            f"Unsupported type provided: '{text}'. The available options are 'zero', 'random', path to a "
            "directory, or a json file; there is no such file or directory.",
        )
    return text


class InputSpec(Options):
    """Options for the inputs of requests."""

    batch_size: int = option(1, "inferences per request", "-b", common=True)
    shape: tuple[Shape, ...] = option(
        (),
        "shape of an input with dynamic dimensions, without the batch dimension (repeatable)",
        metavar="NAME:D,D",
        parse=parse_shape,
        common=True,
    )
    assume_shapes: bool = option(
        False, "send 1 for each dynamic dimension that neither --shape nor the model's configuration names"
    )
    declare: tuple[TensorDescription, ...] = option(
        (),
        "declare an input if the server lists none: name, datatype, and dimensions, -1 for a dynamic one "
        "(repeatable)",
        metavar="NAME:DATATYPE:D,D",
        parse=parse_declaration,
    )
    input_data: tuple[str, ...] = option(
        (),
        "input data: zero, random, a JSON file, a file of JSON lines (.jsonl), or a directory with one "
        "file per input (repeatable); BYTES are random strings even with zero",
        metavar="zero|random|PATH",
        parse=parse_data,
        common=True,
    )
    input: tuple[InputSource, ...] = option(
        (),
        "data of one input: zero, ones, random, range:LOW:HIGH, bytes (arbitrary bits, as perf_analyzer's "
        "random), or file:PATH (.npy, raw, lines of text) (repeatable)",
        metavar="NAME=SOURCE",
        parse=parse_source,
    )
    string_length: int = option(128, "length of random strings in BYTES inputs")
    string_data: str | None = option(None, "string for every BYTES element")
    tolerance: Tolerance | None = option(
        None,
        "maximum difference of outputs from validation_data in the input data (default: exactly equal)",
        metavar="ABSOLUTE[,RELATIVE]",
        parse=parse_tolerance,
    )
    shared_memory: SharedMemoryKind = option(
        "none",
        "send tensors through shared memory: none, system, or cuda",
        refusal="Unsupported type provided: '{}'. The available options are 'system', 'cuda', or 'none'.",
        common=True,
    )
    output_shared_memory_size: int = option(
        102400, "bytes of shared memory per output of unknown size", metavar="BYTES"
    )
    output: tuple[str, ...] = option(
        (), "request only this output (repeatable; default: all)", metavar="NAME"
    )
    seed: int = option(0, "seed for data, arrivals, and sequences")

    def __post_init__(self) -> None:
        if self.batch_size <= 0:
            refuse("-b (batch size)", "The value must be > 0.")
        check_range(self, "string_length", above=0, end="")
        check_range(self, "seed", "output_shared_memory_size", least=0)
        kinds = {text if text in ("zero", "random") else "files" for text in self.input_data}
        if len(kinds) > 1:
            raise UsageError(f"--input-data: {' and '.join(sorted(kinds))} can not be combined; see --input")
        named = {
            "--input": [source.name for source in self.input],
            "--shape": [shape.name for shape in self.shape],
            "--declare": [spec.name for spec in self.declare],
            "--output": list(self.output),
        }
        for flag, names in named.items():
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise UsageError(f"{flag}: '{twice}' is given more than once")

    @property
    def no_file(self) -> str:
        """The first entry of `input_data` that is not a file; empty if all are."""
        return next((text for text in self.input_data if not Path(text).is_file()), "")

    @property
    def files(self) -> tuple[Path, ...]:
        """Files and directories of the data; empty if the data is generated."""
        return tuple(Path(text) for text in self.input_data if text not in ("zero", "random"))

    @property
    def kind(self) -> Literal["zero", "random"]:
        """Kind of data to generate for an input that has neither a file nor its own source."""
        return "zero" if "zero" in self.input_data else "random"

    @property
    def sources(self) -> Mapping[str, InputSource]:
        """Sources of individual inputs, by name."""
        return {source.name: source for source in self.input}


@dataclass(frozen=True, slots=True)
class IdRange:
    """Sequence ids from `first` up to but not including `end`."""

    first: int = 1
    end: int = LAST_ID

    def __str__(self) -> str:
        return f"{self.first}:{self.end}"


def parse_ids(text: str) -> IdRange:
    """Parse `start` or `start:end`; 0 means no sequence and is rejected."""
    flag = "--sequence-id-range"
    parts = text.split(":")
    if len(parts) > 2:
        refuse(flag, "The value does not match <start:end>.")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        refuse(flag, f"Invalid value provided: {text}")
    if min(numbers) < 0:
        refuse(flag, "The range values must be >= 0.")
    first, end = [*numbers, LAST_ID][:2]
    if first == 0:
        refuse(flag, "0 is not a sequence id: the range must start at 1 or above.")
    if end <= first:
        refuse(flag, "The 'end' value must be greater than 'start' value.")
    if end > 2**64 - 1:
        refuse(flag, "The range values must be below 2^64.")
    return IdRange(first, end)


ANY_ID = IdRange()


def length_warning(given: int) -> str:
    """Return a warning if the given sequence length is replaced by the default; empty otherwise."""
    if given > 0:
        return ""
    return f"--sequence-length {given}: the sequence length must be > 0; {DEFAULT_LENGTH} is used"


class SequenceSpec(Options):
    """Options for sequence ids and lengths."""

    sequence_length: int | None = option(
        None, "mean requests per sequence (20); without it, a stream of --input-data is one sequence"
    )
    sequence_length_variation: float = option(
        20.0, "maximum deviation of sequence lengths from the mean, in percent", metavar="PERCENT"
    )
    sequence_id_range: IdRange = option(
        ANY_ID, "sequence ids, from START up to but not including END", metavar="START[:END]", parse=parse_ids
    )

    def __post_init__(self) -> None:
        check_range(self, "sequence_length_variation", least=0.0)

    @property
    def length(self) -> int:
        """Mean requests per sequence; as in perf_analyzer, the default replaces a value below 1."""
        given = self.sequence_length or 0
        return given if given > 0 else DEFAULT_LENGTH

    @property
    def fixed(self) -> bool:
        """True if the length was given, False if a sequence is as long as its stream of the user's data."""
        return self.sequence_length is not None
