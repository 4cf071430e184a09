"""Four models that need no download: a real network, a trained one, and two tiny ones."""

from tpx.examples.repository import ALL, WrittenModel, default_directory, write

__all__ = ["ALL", "WrittenModel", "default_directory", "write"]
