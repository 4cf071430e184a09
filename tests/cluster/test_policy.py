"""Decisions of a cluster, with a clock from outside: no Ray, no process, no sleep."""

import json
import math
import random
from pathlib import Path

import pytest

from tpx.argv import from_argv
from tpx.cluster.policy import Autoscaler, Backoff, ReplicaSample
from tpx.cluster.spec import ClusterSpec, Replicas, read_spec
from tpx.errors import UsageError


def spec(*words: str) -> ClusterSpec:
    return from_argv(ClusterSpec, words)


def busy(utilization: float, queue_ms: float = 0.0, rate: float = 100.0) -> ReplicaSample:
    return ReplicaSample(requests_per_s=rate, queue_ms=queue_ms, utilization=utilization)


def test_more_replicas_come_when_more_were_wanted_for_long_enough() -> None:
    scaler = Autoscaler(spec("--max-replicas=10", "--scale-up-secs=15", "--target-utilization=0.5"))
    assert scaler.decide(2, [busy(1.0)] * 2, 0.0) == 2
    assert scaler.decide(2, [busy(1.0)] * 2, 14.9) == 2
    assert scaler.decide(2, [busy(1.0)] * 2, 15.0) == 4


def test_a_break_begins_the_wait_anew() -> None:
    scaler = Autoscaler(spec("--max-replicas=10", "--scale-up-secs=15", "--target-utilization=0.5"))
    scaler.decide(2, [busy(1.0)] * 2, 0.0)
    scaler.decide(2, [busy(0.5)] * 2, 10.0)
    assert scaler.decide(2, [busy(1.0)] * 2, 15.0) == 2


def test_a_change_is_the_least_that_was_wanted_throughout() -> None:
    up = Autoscaler(spec("--max-replicas=20", "--scale-up-secs=10", "--target-utilization=0.5"))
    up.decide(4, [busy(2.0)] * 4, 0.0)
    up.decide(4, [busy(0.7)] * 4, 5.0)
    assert up.decide(4, [busy(2.0)] * 4, 10.0) == 6
    down = Autoscaler(spec("--max-replicas=20", "--scale-down-secs=10", "--target-utilization=0.5"))
    down.decide(8, [busy(0.1)] * 8, 0.0)
    down.decide(8, [busy(0.4)] * 8, 5.0)
    assert down.decide(8, [busy(0.1)] * 8, 10.0) == 7


def test_a_queue_adds_a_replica_where_processors_are_idle() -> None:
    scaler = Autoscaler(spec("--max-replicas=5", "--scale-up-secs=0", "--target-queue-ms=20"))
    assert scaler.decide(2, [busy(0.1, queue_ms=50)] * 2, 0.0) == 3


def test_a_queue_near_its_limit_keeps_the_replicas() -> None:
    scaler = Autoscaler(spec("--max-replicas=5", "--scale-down-secs=0", "--target-queue-ms=20"))
    assert scaler.decide(3, [busy(0.1, queue_ms=15)] * 3, 0.0) == 3


def test_bounds_hold_whatever_the_load() -> None:
    scaler = Autoscaler(
        spec("--min-replicas=2", "--max-replicas=3", "--scale-up-secs=0", "--scale-down-secs=0")
    )
    assert scaler.decide(3, [busy(50.0)] * 3, 0.0) == 3
    assert scaler.decide(2, [busy(0.0)] * 2, 1.0) == 2
    assert scaler.decide(1, [], 2.0) == 2


@pytest.mark.parametrize("peak", [2, 20, 200])
def test_a_day_is_served_with_few_changes_and_little_waste(peak: int) -> None:
    """Simulate a day of noisy load in steps of 10 s; a replica serves one unit and takes 30 s to start."""
    rng = random.Random(peak)
    scaler = Autoscaler(spec("--min-replicas=1", f"--max-replicas={2 * peak}"))
    starting: list[float] = []
    count, changes, over, used, needed = 1, 0, 0, 0.0, 0.0
    for step in range(8640):
        now_s = step * 10.0
        load = peak * (0.55 - 0.45 * math.cos(2 * math.pi * step / 8640)) * rng.gauss(1, 0.05) * 0.7
        ready = count - len([at for at in starting if at > now_s])
        share = load / ready
        over += share > 1
        wanted = scaler.decide(
            count, [busy(min(share, 1.0), queue_ms=100.0 if share > 1 else 0.0)] * ready, now_s
        )
        changes += wanted != count
        starting = [at for at in starting if at > now_s][-max(wanted, 1) :] + [now_s + 30] * (wanted - count)
        starting = starting[-wanted:] if wanted < count else starting
        count = max(wanted, 1)
        used += count
        needed += load
    assert over / 8640 < 0.02
    assert changes < 40 * math.log2(2 * peak)
    assert used * 0.7 < needed * 1.35 + 8640


def test_the_wait_before_a_restart_doubles_and_is_forgotten() -> None:
    backoff = Backoff()
    assert [backoff.after_death(1.0) for _ in range(5)] == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert [backoff.after_death(1.0) for _ in range(9)][-1] == 30.0
    assert backoff.after_death(60.0) == 0.0


def test_the_fewest_replicas_are_not_above_the_most() -> None:
    with pytest.raises(UsageError, match="--min-replicas 5 is above --max-replicas 3"):
        Replicas(min_replicas=5, max_replicas=3)


def test_a_spec_of_a_file_is_json_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("replicas: 3\nserve: [--log-verbose=1]\n", encoding="utf-8")
    read = read_spec(["-f", str(file), "--replicas=2"])
    assert json.loads(json.dumps(read.plain())) == {"replicas": 2, "serve": ["--log-verbose=1"]}


def test_an_update_changes_only_what_it_names() -> None:
    before = spec("--replicas=3", "--model-repository=/models", "--serve=--log-verbose=1")
    after = read_spec(["--version=2"], before)
    assert after.plain() == {**before.plain(), "version": "2"}
    assert not after.runs_as(before)
    assert read_spec(["--check-secs=2"], before).runs_as(before)
