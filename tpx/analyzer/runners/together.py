"""Several models under load at the same time, each with a load of its own."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tpx.analyzer.results.measurement import Breakdown, Latency, Load, Measurement, Variant
from tpx.analyzer.runners.load import LoadSettings, measure_level


async def measure_together(settings: LoadSettings, address: str, variant: Variant, load: Load) -> Measurement:
    """Measure the variant's members all at once, each under its part of the load.

    A model that is done stays under load until the others are, too. Throughputs are added up, latencies
    averaged. Raises what any of them raises.
    """
    over = asyncio.Event()
    left = len(variant.members)

    async def one(member: Variant, part: Load) -> Measurement:
        nonlocal left
        found = await measure_level(settings, member.model, member.name, address, part)
        left -= 1
        if left:
            await _until(over, lambda: measure_level(settings, member.model, member.name, address, part))
        over.set()
        return found

    pairs = zip(variant.members, load.members, strict=True)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(member, part)) for member, part in pairs]
    except BaseExceptionGroup as group_error:
        raise _first(group_error) from group_error
    return combined([task.result() for task in tasks], variant.name, load)


def combined(members: Sequence[Measurement], variant: str, load: Load) -> Measurement:
    """Several models' measurements as one."""
    return Measurement(
        variant=variant,
        load=load,
        throughput=sum(m.throughput for m in members),
        latency=Latency(
            **{name: _mean([getattr(m.latency, name) for m in members]) for name in Latency.__slots__}
        ),
        breakdown=Breakdown(
            **{name: _mean([getattr(m.breakdown, name) for m in members]) for name in Breakdown.__slots__}
        ),
        stable=all(m.stable for m in members),
        note="; ".join(f"{m.variant}: {m.note}" for m in members if m.note),
        requests=sum(m.requests for m in members),
        duration_ns=max(m.duration_ns for m in members),
        members=tuple(members),
    )


async def _until(over: asyncio.Event, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Do the same again and again; a fault of it shows in the others' figures or not at all."""
    ended = asyncio.create_task(over.wait())
    try:
        while not over.is_set():
            again = asyncio.create_task(work())
            try:
                await asyncio.wait((again, ended), return_when=asyncio.FIRST_COMPLETED)
                if again.done() and again.exception() is not None:
                    await ended
            finally:
                again.cancel()
                await asyncio.wait((again,))
    finally:
        ended.cancel()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _mean(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known)) if known else None
