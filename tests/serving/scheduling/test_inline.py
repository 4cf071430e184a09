"""Where a model is computed: what executions have cost decides, and preemption does not."""

from tpx.serving.scheduling.inline import InlinePolicy

BELOW_NS = 100_000
SHORT_NS = 20_000
ROW = 64


def policy() -> InlinePolicy:
    """A policy that has seen enough short executions."""
    policy = InlinePolicy(BELOW_NS)
    for _ in range(9):
        policy.measured_in_thread(SHORT_NS, ROW)
    assert policy.open
    return policy


def hand_overs(policy: InlinePolicy, here_ns: int, thread_ns: int, failures: int) -> list[int]:
    """Return how many executions go to a thread after each failure on the loop."""
    counts = []
    for _ in range(failures):
        policy.measured_here(here_ns, ROW)
        count = 0
        while not policy.open and count < 2000:
            policy.measured_in_thread(thread_ns, ROW)
            count += 1
        counts.append(count)
    return counts


def test_a_model_shows_in_a_thread_that_it_is_short() -> None:
    fresh = InlinePolicy(BELOW_NS)
    for _ in range(8):
        fresh.measured_in_thread(SHORT_NS, ROW)
        assert not fresh.open
    fresh.measured_in_thread(SHORT_NS, ROW)
    assert fresh.open
    assert not fresh.is_long(ROW)
    assert fresh.is_long(ROW + 1)


def test_nothing_is_computed_on_the_loop_without_a_limit() -> None:
    never = InlinePolicy(0)
    for _ in range(100):
        never.measured_in_thread(SHORT_NS, ROW)
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
        slow.measured_in_thread(5_000_000, ROW)
        assert not slow.open


def test_slow_large_rows_do_not_move_short_small_ones() -> None:
    both = policy()
    for _ in range(10):
        both.measured_in_thread(5_000_000, 1000 * ROW)
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
            near.measured_in_thread(cost_ns, ROW)
    assert here > 200
