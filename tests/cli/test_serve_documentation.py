"""The table of options in docs/reference/serve.md is what the options are.

`TPX_WRITE_DOCS=1 pytest tests/cli/test_serve_documentation.py` writes it anew.
"""

from pathlib import Path

from tests.cli.option_tables import check_page
from tpx.serving.options import ServeWords

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "serve.md"


def test_the_page_has_every_option_as_it_is() -> None:
    check_page(PAGE, ServeWords, "serve", "tests/cli/test_serve_documentation.py")
