"""What holds of queues with priorities, limits and deadlines on every trace."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.fakes import request_of
from tests.serving.scheduling.replay import Replay
from tpx.errors import Cancelled, Overloaded
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.dynamic import DynamicBatcher
from tpx.serving.scheduling.queue import QueuePolicies, QueuePolicy


@st.composite
def queue_policies(draw: st.DrawFn) -> QueuePolicies:
    def policy() -> QueuePolicy:
        return QueuePolicy(
            timeout_ns=draw(st.sampled_from([0, 40, 300])),
            delays=draw(st.booleans()),
            allow_timeout_override=draw(st.booleans()),
            max_queue_size=draw(st.sampled_from([0, 0, 1, 3])),
        )

    levels = draw(st.integers(0, 3))
    return QueuePolicies(
        levels=levels,
        default_level=draw(st.integers(1, levels)) if levels else 0,
        default=policy(),
        by_level={level: policy() for level in range(1, levels + 1) if draw(st.booleans())},
    )


@st.composite
def traces(draw: st.DrawFn) -> list[InferRequest]:
    now = 0
    arrivals = []
    for _ in range(draw(st.integers(1, 20))):
        now += draw(st.sampled_from([0, 0, 1, 10, 60]))
        asked = draw(st.sampled_from([0, 0, 1, 2, 3, 9]))
        timeout_us = draw(st.sampled_from([0, 0, 1]))
        rows = draw(st.integers(1, 4))
        arrivals.append(request_of(now, rows, (2,), priority=asked, timeout=timeout_us))
    return arrivals


@settings(max_examples=120, deadline=None)
@given(
    queue_policies(),
    traces(),
    st.integers(1, 2),
    st.sampled_from([1, 40, 200]),
    st.sampled_from([0, 50]),
    st.dictionaries(st.integers(0, 19), st.integers(0, 300), max_size=3),
    st.booleans(),
)
def test_a_queue_with_policies_keeps_its_promises(
    policies: QueuePolicies,
    arrivals: list[InferRequest],
    instances: int,
    service_ns: int,
    delay_ns: int,
    cancelled: dict[int, int],
    purges: bool,
) -> None:
    cancelled = {index: at for index, at in cancelled.items() if index < len(arrivals)}
    scheduler = DynamicBatcher(4, (), delay_ns, policies)
    replay = Replay(scheduler, instances, lambda _: service_ns, cancelled, purges=purges)
    replay.run(arrivals)

    ended = [id(r) for r in replay.computed] + [id(r.request) for r in replay.rejections]
    assert sorted(ended) == sorted(id(request) for request in arrivals), "lost, or answered twice"
    assert len(scheduler) == 0
    assert all(departure.size <= 4 for departure in replay.departures)

    for rejection in replay.rejections:
        request, policy = rejection.request, _policy_of(policies, rejection.request)
        if isinstance(rejection.error, Cancelled):
            assert request.cancelled
        elif "timeout" in rejection.error.message:
            assert rejection.at_ns == policy.deadline_ns(request)
            assert not policy.delays
        else:
            assert isinstance(rejection.error, Overloaded)
            assert rejection.at_ns == request.arrived_ns
            assert policy.max_queue_size
    left_at = {id(r): d.at_ns for d in replay.departures for r in d.requests}
    for request in replay.computed:
        policy = _policy_of(policies, request)
        if policy.timeout_ns and not policy.delays:
            assert left_at[id(request)] < policy.deadline_ns(request), "it was late and left all the same"
    _within_a_level_nobody_in_time_is_overtaken(policies, replay.computed, left_at)
    _nobody_leaves_before_one_of_higher_priority(policies, replay)


def _policy_of(policies: QueuePolicies, request: InferRequest) -> QueuePolicy:
    return policies.by_level.get(policies.level_of(request), policies.default)


def _late(policies: QueuePolicies, request: InferRequest, at_ns: int) -> bool:
    policy = _policy_of(policies, request)
    return policy.timeout_ns > 0 and policy.deadline_ns(request) <= at_ns


def _within_a_level_nobody_in_time_is_overtaken(
    policies: QueuePolicies, computed: list[InferRequest], left_at: dict[int, int]
) -> None:
    for level in {policies.level_of(request) for request in computed}:
        same = [r for r in computed if policies.level_of(r) == level]
        in_time = [r.arrived_ns for r in same if not _late(policies, r, left_at[id(r)])]
        assert in_time == sorted(in_time)


def _nobody_leaves_before_one_of_higher_priority(policies: QueuePolicies, replay: Replay) -> None:
    place = {id(r): n for n, d in enumerate(replay.departures) for r in d.requests}
    for number, departure in enumerate(replay.departures):
        first = policies.level_of(departure.requests[0])
        for other in replay.computed:
            if place[id(other)] > number and other.arrived_ns < departure.at_ns:
                assert policies.level_of(other) >= first
