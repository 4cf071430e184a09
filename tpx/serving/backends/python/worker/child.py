"""Run by path with any Python that has numpy: makes `tpx` importable, and nothing that lies beside it."""

import importlib.util
import signal
import sys
from pathlib import Path


def _mount(package_directory: Path) -> None:
    """Import `tpx` from its directory. Its parent may be a site-packages: that does not become importable."""
    spec = importlib.util.spec_from_file_location(
        "tpx", package_directory / "__init__.py", submodule_search_locations=[str(package_directory)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tpx"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    # a terminal's interrupt is for the server, which tells its models to end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    _mount(here.parents[3])
    from tpx.serving.backends.python.worker.main import main

    descriptors = map(int, sys.argv[1:])
    sys.argv[:] = [""]  # a model that parses arguments finds none, as in Triton's stub
    main(*descriptors)
