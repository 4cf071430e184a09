"""DataFrames and notebook output for results of the API."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from tpx.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

FRAME_HEIGHT_PX = 720


def data_frame(rows: Sequence[Mapping[str, object]]) -> "pd.DataFrame":
    """Return rows as a DataFrame. Raises UsageError if pandas is not installed."""
    try:
        import pandas as pd
    except ImportError as exc:
        raise UsageError("to_pandas() needs pandas: pip install 'tpx[pandas]'") from exc
    return pd.DataFrame(list(rows))


def embedded(page: str) -> str:
    """Return a whole page as HTML for a notebook cell, in an iframe."""
    return (
        f'<iframe srcdoc="{escape(page, quote=True)}" style="width:100%;height:{FRAME_HEIGHT_PX}px;'
        'border:0"></iframe>'
    )
