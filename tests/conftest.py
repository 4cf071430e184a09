"""What holds for all tests: which of them start servers, which run on a loop, and what they cost beside."""

import asyncio
import gc
import inspect
import multiprocessing
import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest

from tests.e2e import child
from tests.perf import servers
from tests.perf.clients import openai_server
from tests.serving import live

_STARTERS = (
    *(child.Child, child.serve, child.start, child.tpx, live.Live, live.serving),
    *(openai_server.openai_server, servers.grpc_server, servers.http_server),
    *(asyncio.create_subprocess_exec, multiprocessing, subprocess),
)
_IDENTITIES = {id(starter) for starter in _STARTERS}
_LIMIT_S = 30
_NUMBERS = count()
_FILE = pytest.StashKey[Path]()
"""The file whose tests run."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `e2e` what starts servers or processes."""
    for item in items:
        if isinstance(item, pytest.Function) and any(map(starts_something, _modules(item))):
            item.add_marker(pytest.mark.e2e)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt the tests from garbage collection: with all of them, each of a level or a server took long."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Exempt what the tests of earlier files keep, too: after many files, a collection took 0.1 s."""
    if item.session.stash.get(_FILE, None) != item.path:
        item.session.stash[_FILE] = item.path
        gc.collect()
        gc.freeze()


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on an event loop of its own, within bounds."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def run() -> None:
        async with asyncio.timeout(_LIMIT_S):
            await test(**arguments)

    asyncio.run(run())
    return True


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A directory of the test's own; pytest's fixture looks through those of all earlier tests."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}{next(_NUMBERS)}", numbered=False)


def _modules(item: pytest.Function) -> Iterator[ModuleType]:
    """Yield the module of a test, and those of its fixtures but for this one."""
    yield item.module
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        names = (definition.func.__module__ for definition in definitions)
        yield from (sys.modules[name] for name in names if name != __name__)


@cache
def starts_something(module: ModuleType) -> bool:
    """Return true if a module has imported something that starts servers or processes."""
    return any(id(value) in _IDENTITIES for value in vars(module).values())
