"""The options that say what the requests carry."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tpx.options import Option
from tpx.perf.settings import Shape, one_of, parse_shape, refuse

_DATA = "Input data"

_data = one_of(
    "--input-data",
    ("zero", "random"),
    "Unsupported type provided: '{}'. The available options are 'zero' or 'random'.",
)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Inputs of requests."""

    batch_size: Annotated[int, Option("inferences in one request", ("-b",), _DATA)] = 1
    shape: Annotated[
        tuple[Shape, ...],
        Option(
            "shape of an input with dynamic dimensions, without the batch dimension (repeatable)",
            (),
            _DATA,
            "NAME:D,D",
            parse=parse_shape,
        ),
    ] = ()
    input_data: Annotated[
        Literal["zero", "random"],
        Option(
            "what the inputs hold: zero or random; BYTES are random strings in both", (), _DATA, parse=_data
        ),
    ] = "random"
    string_length: Annotated[int, Option("length of the random strings of BYTES inputs", (), _DATA)] = 128
    string_data: Annotated[str | None, Option("the string in every BYTES element", (), _DATA)] = None
    seed: Annotated[int, Option("seed of the random inputs", (), _DATA)] = 0

    def check_data(self) -> None:
        """Raise UsageError for a value out of range."""
        if self.batch_size <= 0:
            refuse("-b (batch size)", "The value must be > 0.")
        if self.string_length <= 0:
            refuse("--string-length", "The value must be > 0")
        if self.seed < 0:
            refuse("--seed", "The value must be >= 0.")
