"""Every option in a command line of the README and the documentation exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpx.cli.commands import COMMANDS, command_of
from tpx.cli.help import options_of
from tpx.perf.options.aiperf import NAMES

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"(?:^\s*(?:[A-Z_]+=\S+ )?|`)tpx ((?:[^\n\\#`]|\\\n)*)", re.M)


def lines() -> Iterator[tuple[str, str]]:
    """Yield page and words of each command line, in blocks and in running text."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for line in COMMAND.findall(page.read_text(encoding="utf-8")):
            words = line.replace("\\\n", " ").strip()
            if command_of(words.split()) in COMMANDS:
                yield page.name, words


@pytest.mark.parametrize(("page", "words"), list(lines()))
def test_a_documented_option_exists(page: str, words: str) -> None:
    command = command_of(words.split())
    known = {name for field in options_of(COMMANDS[command]) for name in field.spellings}
    known |= {"--help", "--help-all"}
    known |= {f"--{name}" for name in NAMES} if command == ("perf",) else set()
    used = {name.partition("=")[0] for name in re.findall(r"(?<=\s)--[a-z][\w-]*", words)}
    missing = sorted(name for name in used if not any(each.startswith(name) for each in known))
    assert missing == [], f"{page}: tpx {words}"
