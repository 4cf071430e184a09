"""The options of `tpx perf`: groups, which `SessionSpec` composes.

Groups that only one layer below has a use for are in that layer: the kind of service and how requests are
put on the wire in `clients`, their data in `inputs`.
"""

from tpx.perf.options.spec import SessionSpec

__all__ = ["SessionSpec"]
