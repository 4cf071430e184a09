"""tpx: serve machine-learning models, measure how fast they are served, find their best configuration.

    import tpx

    with tpx.serve("models", process=True) as server:
        run = tpx.measure(server, "mnist", concurrency=[1, 2, 4])
    print(run.verdict)

Names are imported when they are used, so that `import tpx` costs next to nothing.
"""

from importlib import import_module

__version__ = "1.0.0"
__all__ = [
    "AnalysisRun",
    "PerfRun",
    "RunComparison",
    "RunningServer",
    "analyze",
    "compare",
    "measure",
    "measure_async",
    "serve",
]
_HOMES = {
    "AnalysisRun": "tpx.api.analyzing",
    "analyze": "tpx.api.analyzing",
    "PerfRun": "tpx.api.measuring",
    "RunComparison": "tpx.api.measuring",
    "compare": "tpx.api.measuring",
    "measure": "tpx.api.measuring",
    "measure_async": "tpx.api.measuring",
    "RunningServer": "tpx.api.serving",
    "serve": "tpx.api.serving",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tpx' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
