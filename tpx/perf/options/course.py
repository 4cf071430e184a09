"""The options that say what happens around the levels: before and between them, and how results are named."""

from dataclasses import dataclass

from tpx.errors import UsageError
from tpx.options import option
from tpx.perf.levels import LevelRange
from tpx.perf.settings import refuse

_COURSE = "Course"


@dataclass(frozen=True, slots=True)
class Label:
    """One `--labels KEY=VALUE`."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


def parse_label(text: str) -> Label:
    """`key=value`, split at the first equals sign."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        refuse("--labels", f"The value '{text}' does not match <key=value>.")
    return Label(key.strip(), value)


@dataclass(frozen=True, kw_only=True)
class CourseOptions:
    """Before a level, between levels, beside the results."""

    warmup_seconds: float = option(
        0.0, "seconds of each level's load before it is measured", section=_COURSE, metavar="SECONDS"
    )
    cooldown_seconds: float = option(
        0.0, "seconds without load between levels", section=_COURSE, metavar="SECONDS"
    )
    labels: tuple[Label, ...] = option(
        (),
        "name and value that go into --json, such as commit=1a2b3c (repeatable)",
        section=_COURSE,
        metavar="KEY=VALUE",
        parse=parse_label,
    )

    def check_course(self, levels: LevelRange, warmup_requests: int) -> None:
        """Raise UsageError for a value out of range, or a warm-up that the load cannot have."""
        if not 0 <= self.warmup_seconds < float("inf"):
            refuse("--warmup-seconds", "The value must be >= 0.")
        if not 0 <= self.cooldown_seconds < float("inf"):
            refuse("--cooldown-seconds", "The value must be >= 0.")
        if self.warmup_seconds and warmup_requests:
            raise UsageError("--warmup-seconds and --warmup-request-count can not both end the warm-up")
        if self.warmup_seconds and levels.kind.once:
            raise UsageError(f"--warmup-seconds needs a load that goes on: {levels.kind.text} is sent once")
        keys = [label.key for label in self.labels]
        if len(set(keys)) < len(keys):
            raise UsageError("--labels: a key is given more than once")
