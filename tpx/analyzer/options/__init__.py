"""The options of `tpx analyze`: groups, which `ProfileSpec` composes, and the YAML file."""

from tpx.analyzer.options.file import read_options
from tpx.analyzer.options.spec import ProfileSpec

__all__ = ["ProfileSpec", "read_options"]
