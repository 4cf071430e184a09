"""Where a model is computed: what executions have cost decides, and preemption does not."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from tpx.serving.scheduling.inline import Arrivals, InlinePolicy

BELOW_NS = 100_000
SHORT_NS = 20_000
ROW = 64


def policy(waited: Callable[[], int] = lambda: 0) -> InlinePolicy:
    """A policy that has seen enough short executions."""
    policy = InlinePolicy(BELOW_NS, Arrivals(), lambda: 0, waited)
    for _ in range(9):
        policy.measured_in_thread(SHORT_NS, ROW, alone=False)
    assert policy.open
    return policy


def hand_overs(policy: InlinePolicy, here_ns: int, thread_ns: int, failures: int) -> list[int]:
    """Return how many executions go to a thread after each failure on the loop."""
    counts = []
    for _ in range(failures):
        policy.measured_here(here_ns, ROW)
        count = 0
        while not policy.open and count < 2000:
            policy.measured_in_thread(thread_ns, ROW, alone=False)
            count += 1
        counts.append(count)
    return counts


def test_a_model_shows_in_a_thread_that_it_is_short() -> None:
    fresh = InlinePolicy(BELOW_NS, Arrivals(), lambda: 0)
    for _ in range(8):
        fresh.measured_in_thread(SHORT_NS, ROW, alone=False)
        assert not fresh.open
    fresh.measured_in_thread(SHORT_NS, ROW, alone=False)
    assert fresh.open
    assert not fresh.is_long(ROW)
    assert fresh.is_long(ROW + 1)


@pytest.mark.parametrize(
    ("row_size", "limit_ns"), [(ROW, BELOW_NS), (250_000, 150_000), (500_000, 200_000), (5_000_000, 200_000)]
)
def test_the_limit_grows_by_the_time_that_another_core_needs_to_fetch_a_row(
    row_size: int, limit_ns: int
) -> None:
    for cost_ns in (limit_ns - 1000, limit_ns + 1000):
        fresh = InlinePolicy(BELOW_NS, Arrivals(), lambda: 0)
        for _ in range(20):
            if fresh.open:
                fresh.measured_here(cost_ns, row_size)
            else:
                fresh.measured_in_thread(cost_ns, row_size, alone=False)
        assert fresh.open is (cost_ns < limit_ns)


def test_nothing_is_computed_on_the_loop_without_a_limit() -> None:
    never = InlinePolicy(0, Arrivals())
    for _ in range(100):
        never.measured_in_thread(SHORT_NS, ROW, alone=False)
    assert not never.open


def test_a_preempted_short_execution_costs_one_hand_over() -> None:
    short = policy()
    for _ in range(20):
        assert hand_overs(short, 4_000_000, SHORT_NS, 1) == [1]
        for _ in range(64):
            short.measured_here(SHORT_NS, ROW)
    assert short.open
    assert not short.is_long(ROW)


def test_a_model_that_waits_without_the_cpu_holds_up_the_loop_ever_more_rarely() -> None:
    assert hand_overs(policy(), 5_000_000, SHORT_NS, 12) == [*[2**n for n in range(11)], 1024]


def test_a_model_that_becomes_slow_leaves_the_loop_for_good() -> None:
    slow = policy()
    slow.measured_here(5_000_000, ROW)
    for _ in range(100):
        slow.measured_in_thread(5_000_000, ROW, alone=False)
        assert not slow.open


def test_slow_large_rows_do_not_move_short_small_ones() -> None:
    both = policy()
    for _ in range(10):
        both.measured_in_thread(5_000_000, 1000 * ROW, alone=False)
    assert both.open
    assert both.is_long(1000 * ROW)
    assert not both.is_long(ROW)


def test_a_model_near_the_limit_stays_on_the_loop_while_most_executions_are_short() -> None:
    near = policy()
    here = 0
    for n in range(400):
        cost_ns = BELOW_NS + 1 if n % 4 == 0 else BELOW_NS - 1
        if near.open and not near.is_long(ROW):
            near.measured_here(cost_ns, ROW)
            here += 1
        else:
            near.measured_in_thread(cost_ns, ROW, alone=False)
    assert here > 200


def test_one_execution_beyond_the_limit_after_short_ones_moves_nothing() -> None:
    short = policy()
    for _ in range(20):
        short.measured_here(SHORT_NS, ROW)
    short.measured_here(2 * BELOW_NS, ROW)
    assert short.row_size == ROW
    short.measured_here(2 * BELOW_NS, ROW)
    assert short.row_size < ROW


LONE_NS = 1_000_000
MEDIUM_NS = 400_000


class Alone:
    """A policy for lone requests, and the requests that come to the server."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self.policy = InlinePolicy(BELOW_NS, self.arrivals, lambda: 0)

    def request(self, *, cost_ns: int = MEDIUM_NS, company: int = 0, row_size: int = ROW) -> bool:
        """Have a request come, and others while an instance computes it; return whether the loop did."""
        self.arrivals.count += 1
        if row_size <= self.policy.lone_row_size:
            self.policy.measured_here(cost_ns, row_size)
            return True
        self.policy.handed_over()
        self.arrivals.count += company
        self.policy.measured_in_thread(cost_ns, row_size, alone=True)
        return False

    def until_here(self, most: int = 5000) -> int:
        """Return how many lone requests go to instances before the loop computes one."""
        return next(count for count in range(most) if self.request())


def test_the_loop_computes_lone_requests_and_looks_for_company_now_and_then() -> None:
    scene = Alone()
    assert scene.until_here() == 16
    here = [scene.request() for _ in range(170)]
    assert here.count(False) == 10
    assert not any(first is second is False for first, second in pairwise(here))


def test_under_load_the_choice_stays_with_the_instances() -> None:
    scene = Alone()
    assert not any(scene.request(company=1) for _ in range(1000))
    scene.until_here()
    here = [scene.request(company=1) for _ in range(1000)]
    assert here.count(True) <= 15
    assert not any(here[16:])


def test_requests_to_other_models_are_company() -> None:
    scene = Alone()
    for n in range(200):
        assert not scene.request(company=n % 8 == 0)


def test_what_takes_longer_than_the_limit_stays_with_the_instances() -> None:
    scene = Alone()
    assert not any(scene.request(cost_ns=LONE_NS) for _ in range(100))
    assert not any(scene.request(row_size=2 * ROW, cost_ns=5 * LONE_NS) for _ in range(100))


def test_larger_rows_than_any_that_were_quick_go_to_an_instance_first() -> None:
    scene = Alone()
    scene.until_here()
    assert not scene.request(row_size=2 * ROW)
    assert scene.request(row_size=2 * ROW)


def test_lone_requests_that_wait_without_the_cpu_hold_up_the_loop_ever_more_rarely() -> None:
    scene = Alone()
    counts = []
    for _ in range(4):
        counts.append(scene.until_here())
        scene.policy.measured_here(5 * LONE_NS, ROW)
    assert counts == [16, 32, 64, 128]


def test_lone_requests_that_are_preempted_now_and_then_stay_on_the_loop() -> None:
    scene = Alone()
    scene.until_here()
    here = []
    for _ in range(30):
        here += [scene.request() for _ in range(100)]
        scene.policy.measured_here(5 * LONE_NS, ROW)
    assert here.count(True) > 0.6 * len(here)


def test_no_lone_request_is_computed_on_the_loop_without_a_limit() -> None:
    never = InlinePolicy(0, Arrivals())
    for _ in range(100):
        never.handed_over()
        never.measured_in_thread(SHORT_NS, ROW, alone=True)
    assert never.lone_row_size < 0


def test_executions_that_change_nothing_need_not_be_reported() -> None:
    short = policy()
    for _ in range(7):
        assert not short.usual_ns
        short.measured_here(SHORT_NS, ROW)
    assert short.usual_ns == BELOW_NS
    short.measured_here(4_000_000, ROW)
    assert not short.usual_ns


SECOND = 1_000_000_000


def test_a_model_that_freezes_the_loop_stays_off_it_for_a_hundred_times_as_long() -> None:
    now_ns = [0]
    seen = InlinePolicy(BELOW_NS, Arrivals(), lambda: now_ns[0])

    def seconds_off() -> float:
        """Freeze for a second; how long short executions do not bring the model back."""
        seen.measured_here(SECOND, ROW)
        began_ns = now_ns[0]
        while not seen.open or seen.row_size < ROW:
            now_ns[0] += 20 * SECOND
            for _ in range(2000):
                seen.measured_in_thread(SHORT_NS, ROW, alone=False)
        return (now_ns[0] - began_ns) / SECOND

    for _ in range(9):
        seen.measured_in_thread(SHORT_NS, ROW, alone=False)
    assert [seconds_off() for _ in range(4)] == [100, 200, 400, 800]
    now_ns[0] += 801 * SECOND  # as long on the loop as off it
    assert seconds_off() == 100
    seen.measured_here(10_000_000, ROW)  # too short for others to notice
    for _ in range(2000):
        seen.measured_in_thread(SHORT_NS, ROW, alone=False)
    assert seen.open


@pytest.mark.parametrize(
    ("waited_ns", "stays"), [(SECOND - SHORT_NS, True), (SECOND - 1_000_000, False), (0, False)]
)
def test_what_the_loops_thread_waited_for_a_core_is_no_slow_execution(waited_ns: int, stays: bool) -> None:
    """A container that used up its share of the CPU stands still for many executions' time."""
    total_ns = [5 * SECOND]
    throttled = policy(lambda: total_ns[0])
    for _ in range(20):
        throttled.measured_here(SHORT_NS, ROW)
    total_ns[0] += waited_ns
    throttled.measured_here(SECOND, ROW)
    assert throttled.open is stays
    throttled.measured_here(SECOND, ROW)
    assert not throttled.open, "the earlier wait excuses one execution only"


def test_a_wait_that_cannot_be_read_once_changes_nothing() -> None:
    total_ns = [SECOND]
    unsure = policy(lambda: total_ns[0])
    unsure.measured_here(SHORT_NS, ROW)
    total_ns[0] = 0
    unsure.measured_here(4 * BELOW_NS, ROW)  # not as if it had taken a second more, which bars the model
    unsure.measured_in_thread(SHORT_NS, ROW, alone=False)
    assert unsure.open
    total_ns[0] = SECOND
    unsure.measured_here(SECOND, ROW)
    assert not unsure.open, "what was known before excuses nothing"


def test_where_a_model_is_computed_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "tpx.serving.scheduling")
    told = InlinePolicy(BELOW_NS, Arrivals(), lambda: 0, model="net")
    for _ in range(20):
        told.measured_in_thread(SHORT_NS, ROW, alone=False)
    told.measured_here(SECOND, ROW)
    assert [record.getMessage() for record in caplog.records] == [
        "requests to 'net' are computed on the event loop, because they are short",
        "requests to 'net' are computed by its instances for a time",
    ]


def test_a_lone_request_that_freezes_the_loop_keeps_the_model_off_it_too() -> None:
    now_ns = [0]
    policy = InlinePolicy(BELOW_NS, Arrivals(), lambda: now_ns[0])

    def in_thread(count: int) -> None:
        for _ in range(count):
            policy.handed_over()
            policy.measured_in_thread(5 * BELOW_NS, ROW, alone=True)

    for _ in range(9):
        policy.measured_in_thread(SHORT_NS, ROW // 2, alone=False)
    in_thread(16)
    assert (policy.row_size, policy.lone_row_size) == (ROW // 2, ROW)
    policy.measured_here(SECOND, ROW)
    assert not policy.open
    assert policy.row_size < 0, "nor does it compute what is short"
    in_thread(5000)
    assert policy.lone_row_size < 0
    now_ns[0] = 101 * SECOND
    in_thread(5000)
    assert (policy.row_size, policy.lone_row_size) == (ROW // 2, ROW)


@pytest.mark.parametrize(
    ("cost_ns", "stays"),
    [(BELOW_NS - 1, True), (4 * BELOW_NS - 1, True), (4 * BELOW_NS, False), (40 * BELOW_NS, False)],
)
def test_four_times_the_limit_may_be_preemption_and_threads_decide(cost_ns: int, stays: bool) -> None:
    short = policy()
    for _ in range(20):
        short.measured_here(SHORT_NS, ROW)
    short.measured_here(cost_ns, ROW)
    assert short.open is stays


@pytest.mark.parametrize(("executions", "handed_over"), [(64, 1), (63, 2)])
def test_short_executions_on_the_loop_rehabilitate_a_model(executions: int, handed_over: int) -> None:
    """The second failure costs as much as the first one after 64 of them."""
    short = policy()
    assert hand_overs(short, 4_000_000, SHORT_NS, 1) == [1]
    for _ in range(executions):
        short.measured_here(SHORT_NS, ROW)
    assert hand_overs(short, 4_000_000, SHORT_NS, 1) == [handed_over]


def test_lone_requests_wait_for_no_more_than_1024_others() -> None:
    scene = Alone()
    scene.until_here()
    for _ in range(12):
        scene.policy.measured_here(5 * LONE_NS, ROW)
    assert scene.until_here() == 1024


@pytest.mark.parametrize("seconds", [36, 37, 1000])
def test_a_model_is_off_the_loop_for_an_hour_at_most(seconds: int) -> None:
    now_ns = [0]
    slow = InlinePolicy(BELOW_NS, Arrivals(), lambda: now_ns[0])
    slow.measured_here(seconds * SECOND, ROW)

    def is_open_at(second: int) -> bool:
        now_ns[0] = second * SECOND
        for _ in range(2000):
            slow.measured_in_thread(SHORT_NS, ROW, alone=False)
        return slow.open

    assert [is_open_at(3599), is_open_at(3600)] == [False, True]
