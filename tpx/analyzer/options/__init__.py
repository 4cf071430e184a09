"""What `tpx analyze` can be told: a module for each group of options, the YAML file, and the rules between
them."""

from tpx.analyzer.options.config import ProfileConfig
from tpx.analyzer.options.file import read_options

__all__ = ["ProfileConfig", "read_options"]
