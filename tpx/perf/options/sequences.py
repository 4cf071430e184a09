"""The options that say what sequences of requests are like, for models that take them."""

from dataclasses import dataclass

from tpx.options import option
from tpx.perf.inputs.sequences import LAST_ID, SequenceSettings
from tpx.perf.settings import refuse

DEFAULT_LENGTH = 20


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids from `first` to before `end`."""

    first: int = 1
    end: int = LAST_ID

    def __str__(self) -> str:
        return f"{self.first}:{self.end}"


def parse_ids(text: str) -> IdRange:
    """`start` or `start:end`; 0 is no sequence."""
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
        refuse(flag, "0 is no id of a sequence: the range has to start at 1 or above.")
    if end <= first:
        refuse(flag, "The 'end' value must be greater than 'start' value.")
    if end > 2**64 - 1:
        refuse(flag, "The range values must be below 2^64.")
    return IdRange(first, end)


ANY_ID = IdRange()


def sequence_length(given: int) -> int:
    """The length that is used: as perf_analyzer does, the default in place of one below 1."""
    return given if given > 0 else DEFAULT_LENGTH


def length_warning(given: int) -> str:
    """A line where the length that is used is not the one given."""
    if given > 0:
        return ""
    return f"--sequence-length {given}: the sequence length must be > 0; {DEFAULT_LENGTH} is used"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSpec:
    """Ids and lengths."""

    sequence_length: int | None = option(
        None,
        "requests in a sequence on average (20); without it a stream of --input-data is a sequence",
    )
    sequence_length_variation: float = option(
        20.0, "by how many percent lengths differ from it at most", metavar="PERCENT"
    )
    sequence_id_range: IdRange = option(
        ANY_ID,
        "ids of the sequences: START to before END",
        metavar="START[:END]",
        parse=parse_ids,
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range."""
        if not 0 <= self.sequence_length_variation < float("inf"):
            refuse("--sequence-length-variation", "The value must be >= 0.0.")

    @property
    def settings(self) -> SequenceSettings:
        """What sequences are like."""
        return SequenceSettings(
            first_id=self.sequence_id_range.first,
            end_id=self.sequence_id_range.end,
            length=DEFAULT_LENGTH if self.sequence_length is None else sequence_length(self.sequence_length),
            variation=self.sequence_length_variation,
            fixed=self.sequence_length is not None,
        )
