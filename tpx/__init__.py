"""tpx: serve machine-learning models, measure how fast they are served, find their best configuration."""

__version__ = "0.1.0"
