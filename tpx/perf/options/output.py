"""The options that say what is shown and written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tpx.options import Option

_OUTPUT = "Output"


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Files, and how much of it is told."""

    verbose: Annotated[
        bool, Option("show every window, and send and receive times apart", ("-v",), _OUTPUT)
    ] = False
    csv: Annotated[Path | None, Option("write perf_analyzer's CSV", ("-f",), _OUTPUT, "FILE")] = None
    verbose_csv: Annotated[bool, Option("further columns in the CSV", (), _OUTPUT)] = False
    json: Annotated[Path | None, Option("write every level as JSON", (), _OUTPUT, "FILE")] = None
