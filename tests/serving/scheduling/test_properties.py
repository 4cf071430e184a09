"""What holds of every scheduler on every trace; and DynamicBatcher decides as Triton's algorithm does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.fakes import request_of
from tests.serving.scheduling.replay import Departure, Replay
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import Scheduler
from tpx.serving.scheduling.direct import DirectScheduler
from tpx.serving.scheduling.dynamic import DynamicBatcher

SHAPES = ((2,), (2,), (2,), (2, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The settings of a dynamic batcher."""

    max_batch: int
    preferred: tuple[int, ...]
    delay_ns: int

    def batcher(self) -> DynamicBatcher:
        return DynamicBatcher(self.max_batch, self.preferred, self.delay_ns)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    max_batch = draw(st.sampled_from([1, 2, 4, 8]))
    preferred = draw(st.lists(st.integers(1, max_batch), max_size=3, unique=True))
    return Policy(
        max_batch=max_batch,
        preferred=tuple(preferred),
        delay_ns=draw(st.sampled_from([0, 1, 50, 1000])),
    )


@st.composite
def traces(draw: st.DrawFn, max_batch: int) -> list[InferRequest]:
    now = 0
    arrivals = []
    for _ in range(draw(st.integers(1, 25))):
        now += draw(st.sampled_from([0, 0, 1, 10, 60, 500]))
        rows = min(max_batch, draw(st.sampled_from([1, 1, 1, 2, 3, 6, 8])))
        arrivals.append(request_of(now, rows, draw(st.sampled_from(SHAPES))))
    return arrivals


def _service(per_batch_ns: int) -> Callable[[int], int]:
    return lambda size: per_batch_ns + size


def _replayed(
    scheduler: Scheduler, arrivals: Sequence[InferRequest], instances: int, service_ns: int
) -> list[Departure]:
    departures = Replay(scheduler, instances, _service(service_ns)).run(arrivals)
    left = [request for departure in departures for request in departure.requests]
    # nothing lost, nothing twice, and nobody overtakes
    assert [id(request) for request in left] == [id(request) for request in arrivals]
    assert len(scheduler) == 0
    return departures


def _nobody_waits_beyond(
    delay_ns: int, departures: Sequence[Departure], instances: int, service_ns: int
) -> None:
    """While an instance stands idle, a request leaves at the latest when its delay has passed."""
    free_at = [0] * instances
    for departure in departures:
        first_free = min(free_at)
        assert departure.at_ns <= max(departure.requests[0].arrived_ns + delay_ns, first_free)
        begins = max(departure.at_ns, first_free)
        free_at[free_at.index(first_free)] = begins + _service(service_ns)(departure.size)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 3), st.sampled_from([1, 40, 300]))
def test_a_dynamic_batcher_keeps_its_promises(data: st.DataObject, instances: int, service_ns: int) -> None:
    policy = data.draw(policies())
    arrivals = data.draw(traces(policy.max_batch))
    departures = _replayed(policy.batcher(), arrivals, instances, service_ns)
    for departure in departures:
        assert 0 < departure.size <= policy.max_batch
        assert len({request.head.batch_key for request in departure.requests}) == 1
    _nobody_waits_beyond(policy.delay_ns, departures, instances, service_ns)


@settings(max_examples=50, deadline=None)
@given(traces(max_batch=8), st.integers(1, 3), st.sampled_from([1, 40, 300]))
def test_a_direct_scheduler_keeps_its_promises(
    arrivals: list[InferRequest], instances: int, service_ns: int
) -> None:
    departures = _replayed(DirectScheduler(), arrivals, instances, service_ns)
    assert all(len(departure.requests) == 1 for departure in departures)
    _nobody_waits_beyond(0, departures, instances, service_ns)


def triton_decision(policy: Policy, queue: Sequence[InferRequest], now_ns: int) -> int:
    """How many requests of the front Triton would send to an idle instance (dynamic_batch_scheduler.cc)."""
    largest = max(policy.preferred, default=policy.max_batch)
    pending = best = best_count = count = 0
    send_now = False
    key = queue[0].head.batch_key
    for request in queue:
        rows = request.head.batch_size
        if pending:
            if pending + rows > largest and not best:
                best, best_count = pending, count
            if pending + rows > policy.max_batch or request.head.batch_key != key:
                send_now = True
                break
        pending += rows
        count += 1
        if pending in (policy.preferred or (policy.max_batch,)):
            best, best_count = pending, count
    exceeded = policy.delay_ns != 0 and now_ns - queue[0].arrived_ns >= policy.delay_ns
    if best and not exceeded:
        return best_count
    if send_now or pending >= largest or exceeded or not policy.delay_ns:
        return count
    return 0


@settings(max_examples=150, deadline=None)
@given(st.data(), policies(), st.integers(0, 1200))
def test_a_dynamic_batcher_decides_as_triton_does(data: st.DataObject, policy: Policy, wait_ns: int) -> None:
    queue = data.draw(traces(policy.max_batch))
    batcher = policy.batcher()
    for request in queue:
        batcher.add(request)
    now_ns = queue[-1].arrived_ns + wait_ns
    assert len(batcher.take(now_ns, idle=True)) == triton_decision(policy, queue, now_ns)
