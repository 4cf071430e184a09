"""The options of `tpx perf`, in groups that `SessionSpec` composes.

Groups that only one lower layer uses are defined there: service kinds and wire formats in `clients`,
data in `inputs`.
"""

from tpx.perf.options.spec import SessionSpec

__all__ = ["SessionSpec"]
