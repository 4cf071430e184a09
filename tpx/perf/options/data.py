"""The options that say what the requests carry."""

from dataclasses import dataclass
from pathlib import Path

from tpx.errors import UsageError
from tpx.options import option
from tpx.perf.clients.model import TensorSpec
from tpx.perf.inputs.base import InputSettings, InputSource, parse_declaration, parse_source
from tpx.perf.inputs.shared_memory import SharedMemoryKind
from tpx.perf.inputs.validation import Tolerance, parse_tolerance
from tpx.perf.settings import Shape, one_of, parse_shape, refuse

_DATA = "Input data"


_shared_memory = one_of(
    "--shared-memory",
    ("none", "system", "cuda"),
    "Unsupported type provided: '{}'. The available options are 'system', 'cuda', or 'none'.",
)


def parse_data(text: str) -> str:
    """`zero`, `random`, or a path that is there."""
    if text.lower() in ("zero", "random"):
        return text.lower()
    if not Path(text).exists():
        choices = "'zero', 'random', path to a directory, or a json file"
        known = f"The available options are {choices}"
        refuse("--input-data", f"Unsupported type provided: '{text}'. {known}; nothing lies at that path.")
    return text


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Inputs of requests."""

    batch_size: int = option(1, "inferences in one request", "-b", section=_DATA)
    shape: tuple[Shape, ...] = option(
        (),
        "shape of an input with dynamic dimensions, without the batch dimension (repeatable)",
        section=_DATA,
        metavar="NAME:D,D",
        parse=parse_shape,
    )
    declare: tuple[TensorSpec, ...] = option(
        (),
        "an input, where the server lists none: its name, datatype and dimensions, -1 where one is open "
        "(repeatable)",
        section=_DATA,
        metavar="NAME:DATATYPE:D,D",
        parse=parse_declaration,
    )
    input_data: tuple[str, ...] = option(
        (),
        "what the inputs hold: zero, random, a JSON file, a file with a JSON object a line (.jsonl), or "
        "a directory with a file for each input (repeatable); BYTES are random strings also for zero",
        section=_DATA,
        metavar="zero|random|PATH",
        parse=parse_data,
    )
    input: tuple[InputSource, ...] = option(
        (),
        "of one input: zero, ones, random, range:LOW:HIGH, bytes (any bits, as perf_analyzer's random), "
        "or file:PATH (.npy, raw, lines of text) (repeatable)",
        section=_DATA,
        metavar="NAME=SOURCE",
        parse=parse_source,
    )
    string_length: int = option(128, "length of the random strings of BYTES inputs", section=_DATA)
    string_data: str | None = option(None, "the string in every BYTES element", section=_DATA)
    tolerance: Tolerance | None = option(
        None,
        "how far outputs may be from the data's validation_data; exactly equal without it",
        section=_DATA,
        metavar="ABSOLUTE[,RELATIVE]",
        parse=parse_tolerance,
    )
    shared_memory: SharedMemoryKind = option(
        "none",
        "where tensors are that the server shares instead of receiving them: none, system or cuda",
        section=_DATA,
        parse=_shared_memory,
    )
    output_shared_memory_size: int = option(
        102400, "bytes of shared memory for an output of unknown size", section=_DATA, metavar="BYTES"
    )
    output: tuple[str, ...] = option(
        (), "ask for this output only (repeatable); all without it", section=_DATA, metavar="NAME"
    )
    seed: int = option(0, "seed of data, arrivals and sequences", section=_DATA)

    def check_data(self, *, needing: str = "") -> None:
        """Raise UsageError for a value out of range, data of two kinds, or without the files that the option
        `needing` takes everything from."""
        if self.batch_size <= 0:
            refuse("-b (batch size)", "The value must be > 0.")
        if self.string_length <= 0:
            refuse("--string-length", "The value must be > 0")
        if self.seed < 0:
            refuse("--seed", "The value must be >= 0.")
        if self.output_shared_memory_size < 0:
            refuse("--output-shared-memory-size", "The value must be >= 0.")
        kinds = {text if text in ("zero", "random") else "files" for text in self.input_data}
        if len(kinds) > 1:
            raise UsageError(f"--input-data: {' and '.join(sorted(kinds))} can not be combined; see --input")
        if needing:
            self._check_files(needing)
        for flag, names in (
            ("--input", [source.name for source in self.input]),
            ("--shape", [shape.name for shape in self.shape]),
            ("--declare", [spec.name for spec in self.declare]),
            ("--output", list(self.output)),
        ):
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise UsageError(f"{flag}: '{twice}' is given more than once")

    def _check_files(self, needing: str) -> None:
        if not self.input_data:
            raise UsageError(f"When using `{needing}`, you must provide a dataset using `--input-data`.")
        for text in self.input_data:
            if not Path(text).is_file():
                raise UsageError(
                    f"'{text}' is not a file. When using `{needing}`, all paths passed to --input-data must "
                    "be files."
                )

    @property
    def data_files(self) -> tuple[Path, ...]:
        """The files and directories of the data; none where it is made."""
        return tuple(Path(text) for text in self.input_data if text not in ("zero", "random"))

    @property
    def input_settings(self) -> InputSettings:
        """Where inputs come from."""
        return InputSettings(
            kind="zero" if "zero" in self.input_data else "random",
            files=self.data_files,
            sources={source.name: source for source in self.input},
            batch_size=self.batch_size,
            shapes=self.shape,
            string_length=self.string_length,
            string_data=self.string_data,
            seed=self.seed,
        )
