"""Example models that need no download: a real network, a trained one, tiny ones, and ensembles."""

from tpx.examples.repository import ALL, WrittenModel, default_directory, servable, write

__all__ = ["ALL", "WrittenModel", "default_directory", "servable", "write"]
