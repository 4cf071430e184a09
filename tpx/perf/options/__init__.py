"""What `tpx perf` can be told: a module for each group of options, and the whole for whoever runs it."""

from tpx.perf.options.config import PerfConfig

__all__ = ["PerfConfig"]
