"""Words of `tpx perf` for a model `net`: the run that they describe, or why they describe none."""

import pytest

from tpx.argv import from_argv
from tpx.errors import UsageError
from tpx.perf.options import SessionSpec


def parse(*words: str) -> SessionSpec:
    """The run that these words describe."""
    return from_argv(SessionSpec, ["-m", "net", *words])


def message(*words: str) -> str:
    """Why these words are refused."""
    with pytest.raises(UsageError) as caught:
        parse(*words)
    return caught.value.message
