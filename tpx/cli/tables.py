"""Printing tables whose cells are somebody else's words."""

import sys

from rich.console import Console
from rich.table import Table


def print_plainly(table: Table) -> None:
    """Print a table to stdout: a name that looks like markup stays as it is, and a pipe has no width."""
    width = None if sys.stdout.isatty() else 10_000
    Console(markup=False, emoji=False, highlight=False, width=width).print(table)
