"""Every option in a command line of the README and the documentation exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpx.cli.commands import COMMANDS, command_of
from tpx.cli.help import options_of

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"^\s*(?:[a-z-]+ -- )?tpx ((?:[^\n\\#`]|\\\n)*)", re.M)


def lines() -> Iterator[tuple[str, str]]:
    """Page and words of each command line that stands in a block of code."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in page.read_text(encoding="utf-8").split("```")[1::2]:
            for line in COMMAND.findall(block):
                yield page.name, line.replace("\\\n", " ").strip()


@pytest.mark.parametrize(("page", "words"), list(lines()))
def test_a_documented_option_exists(page: str, words: str) -> None:
    command = command_of(words.split())
    known = {name for field in options_of(COMMANDS[command]) for name in field.spellings}
    used = {name.partition("=")[0] for name in re.findall(r"(?<=\s)--[a-z][\w-]*", words)}
    missing = sorted(name for name in used if not any(each.startswith(name) for each in known))
    assert missing == [], f"{page}: tpx {words}"
