"""The table of options in docs/reference/analyze.md is what the options are.

`TPX_WRITE_DOCS=1 pytest tests/cli/test_analyze_documentation.py` writes it anew.
"""

from pathlib import Path

from tests.cli.option_tables import check_page
from tpx.analyzer.options import ProfileSpec
from tpx.cli.commands import below

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_every_option_as_it_is() -> None:
    check_page(
        DOCS / "reference" / "analyze.md", ProfileSpec, "analyze", "tests/cli/test_analyze_documentation.py"
    )


def test_the_page_has_every_command() -> None:
    text = (DOCS / "analyze" / "commands.md").read_text(encoding="utf-8")
    for command in below(("analyze",)):
        assert f"| `{command}" in text, command
