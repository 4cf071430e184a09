"""What holds for all tests: which of them start servers, and what a test costs beside itself."""

import asyncio
import gc
import multiprocessing
import subprocess
import sys
from collections.abc import Generator, Iterator
from functools import cache
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


def _modules(item: pytest.Function) -> Iterator[ModuleType]:
    """Yield the module of a test, and those of its fixtures."""
    yield item.module
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        yield from (sys.modules[definition.func.__module__] for definition in definitions)


@cache
def starts_something(module: ModuleType) -> bool:
    """Return true if a module has imported something that starts servers or processes."""
    return any(id(value) in _IDENTITIES for value in vars(module).values())
