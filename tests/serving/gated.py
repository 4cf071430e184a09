"""A backend that gives back what it gets once its gate is open: tests decide when its instances are free."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.serving.installed import install
from tpx.serving.backends.contract import Arrays, Executor, InstanceSpec, ModelFiles
from tpx.serving.backends.models_in_code import IdentityModel
from tpx.serving.backends.table import BACKENDS


class Gate:
    """Where all instances wait while it is closed."""

    def __init__(self) -> None:
        self.passed: list[float] = []
        """The values of the inputs that were computed since it was closed, in that order."""
        self._open = threading.Event()

    def close(self) -> None:
        self._open.clear()
        self.passed = []

    def open(self) -> None:
        self._open.set()

    def pass_through(self, inputs: Arrays) -> None:
        assert self._open.wait(50)
        for array in inputs.values():
            self.passed += array.ravel().tolist()


GATE = Gate()


@contextmanager
def installed(site: Path) -> Iterator[None]:
    """`backend: "gated"` is found while this lasts."""
    install(site, "gated-backend", "", {BACKENDS.group: {"gated": f"{__name__}:GatedBackend"}})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield


class GatedBackend:
    """Opens nothing."""

    default_filename = ""

    def open(self, files: ModelFiles, config: Any) -> "GatedModel":
        return GatedModel(config)


class GatedModel:
    """An identity model whose instances wait at the gate."""

    inline = False

    def __init__(self, config: Any) -> None:
        self._identity = IdentityModel(config)

    def complete(self, config: Any, *, default_max_batch_size: int) -> None:
        pass

    def check(self, config: Any) -> None:
        self._identity.check(config)

    def executor(self, spec: InstanceSpec, config: Any) -> "GatedExecutor":
        return GatedExecutor(self._identity.executor(spec, config))

    def close(self) -> None:
        pass


class GatedExecutor:
    """Answers once the gate is open."""

    def __init__(self, identity: Executor) -> None:
        self._identity = identity

    def execute(self, inputs: Arrays) -> Arrays:
        GATE.pass_through(inputs)
        return self._identity.execute(inputs)

    def close(self) -> None:
        pass
