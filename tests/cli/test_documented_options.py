"""Every option in a command line of the README and the documentation exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpx.analyzer.options import ProfileSpec
from tpx.cli.main import run
from tpx.options import fields_of
from tpx.perf.options.words import PerfWords
from tpx.serving.options import ServeConfig

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"^\s*(?:[a-z-]+ -- )?tpx ((?:[^\n\\#`]|\\\n)*)", re.M)
CONFIGS = {
    "serve": ServeConfig,
    "perf": PerfWords,
    "analyze profile": ProfileSpec,
    "analyze plan": ProfileSpec,
}


def lines() -> Iterator[tuple[str, str]]:
    """Page and words of each command line that stands in a block of code."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in page.read_text(encoding="utf-8").split("```")[1::2]:
            for line in COMMAND.findall(block):
                yield page.name, line.replace("\\\n", " ").strip()


def command_of(words: str) -> str:
    first, _, rest = words.partition(" ")
    second = rest.split(" ")[0]
    return f"{first} {second}" if first == "analyze" or second == "compare" else first


@pytest.mark.parametrize(("page", "words"), list(lines()))
def test_a_documented_option_exists(page: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = command_of(words)
    if command in CONFIGS:
        names = {name for field in fields_of(CONFIGS[command]) for name in field.spellings}
    else:
        run([*command.split(), "--help"])
        names = set(re.findall(r"--?[a-zA-Z][\w-]*", capsys.readouterr().out))
    used = {name.partition("=")[0] for name in re.findall(r"(?<=\s)--[a-z][\w-]*", words)}
    missing = sorted(name for name in used if not any(known.startswith(name) for known in names))
    assert missing == [], f"{page}: tpx {words}"
