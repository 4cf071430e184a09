"""Run by path with any Python that has numpy; makes `tpx` importable, but no other packages beside it.

Its arguments are the descriptors of `worker.main`, or that of a socket after the word `fork`.
"""

import faulthandler
import importlib.util
import os
import signal
import sys
from pathlib import Path


def _make_importable(package_directory: Path) -> None:
    """Make `tpx` importable, but not its parent directory, which may be a site-packages."""
    spec = importlib.util.spec_from_file_location(
        "tpx", package_directory / "__init__.py", submodule_search_locations=[str(package_directory)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tpx"] = module
    spec.loader.exec_module(module)


def _ignore_termination() -> None:
    """Ignore termination signals: the server ends its models itself.

    A terminal interrupts whole process groups, and service managers send SIGTERM to every process of a
    service. Processes started by a model are not protected; the model ends them.
    """
    own = os.getpid()

    def ignore(number: int, frame: object) -> None:  # noqa: ARG001
        if os.getpid() != own:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ignore)  # unlike SIG_IGN, programs that the model executes do not inherit it


if __name__ == "__main__":
    _ignore_termination()
    faulthandler.register(signal.SIGUSR1, file=2)  # stacks of all threads, as in the server
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    _make_importable(here.parents[3])
    from tpx.serving.backends.python.worker.main import main

    if sys.argv[1] == "fork":
        from tpx.serving.backends.python.worker.forking import wait_for_orders

        descriptors = wait_for_orders(int(sys.argv[2]))
        _ignore_termination()  # its signals are those of another process now
    else:
        descriptors = [int(word) for word in sys.argv[1:]]
    sys.argv[:] = [""]  # a model that parses arguments finds none, as in Triton's stub
    main(*descriptors)
