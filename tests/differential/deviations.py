"""The list of deliberate deviations, as people read it."""

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "deviations.md"
SAME_WORDS = "## The same words, another status"
_COLUMNS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One row of the tables: what differs, why, and the cases that show it."""

    what: str
    why: str
    cases: frozenset[str]
    same_words: bool
    """Only the status may differ, and the message may go on where Triton's ends."""


def listed() -> list[Deviation]:
    """The rows of `docs/reference/deviations.md` whose last column names cases."""
    rows, section = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith("| ") and len(cells) == _COLUMNS and cells[0] not in ("what", "---"):
            rows.append(
                Deviation(
                    what=cells[0],
                    why=cells[3],
                    cases=frozenset(re.findall(r"`([\w-]+)`", cells[4])),
                    same_words=section == SAME_WORDS,
                )
            )
    return rows
