"""Tests written as coroutines run once on asyncio's own loop and once on uvloop.

A test fails if the loop reports an exception that nobody caught: that is how a broken protocol class shows.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

_LOOPS = ("asyncio", "uvloop")
_LIMIT_S = 30


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("loop_name")
        metafunc.parametrize("loop_name", _LOOPS)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    params = pyfuncitem.callspec.params
    arguments = {name: params.get(name, pyfuncitem.funcargs.get(name)) for name in wanted}
    run_on(str(params["loop_name"]), pyfuncitem.obj, arguments)
    return True


def run_on(loop_name: str, test: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Run a coroutine function on a fresh loop and see that the loop has nothing to complain about."""
    complaints: list[dict[str, Any]] = []

    async def bounded() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(_LIMIT_S):
            await test(**arguments)

    with asyncio.Runner(loop_factory=_loop_factory(loop_name)) as runner:
        runner.run(bounded())
    assert complaints == []


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if name == "uvloop":
        import uvloop

        return uvloop.new_event_loop
    return asyncio.new_event_loop
