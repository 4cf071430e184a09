"""A server in virtual time: queues whose throughput and latencies are known by formula, measured by the real
windows, rules, intervals and verdicts without a network and without waiting."""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpx.perf.levels import Level
from tpx.perf.measure.ledger import Ending, LevelLedger, WindowBorder
from tpx.perf.measure.verdict import level_result
from tpx.perf.records import ROW, SUCCESS, Records, Rows
from tpx.perf.results import LevelResult
from tpx.perf.settings import LevelSettings

Seconds = npt.NDArray[np.float64]
Service = Callable[[np.random.Generator, int], Seconds]
"""Service times of so many requests."""


def exponential(mean_s: float) -> Service:
    return lambda rng, count: rng.exponential(mean_s, count)


def constant(mean_s: float) -> Service:
    return lambda _, count: np.full(count, mean_s)


def closed_loop(
    rng: np.random.Generator, service: Service, *, concurrency: int, servers: int, seconds: float
) -> Rows:
    """`concurrency` requests always in flight, served first come first served by `servers`."""
    count = int(seconds / service(rng, 2000).mean() * min(servers, concurrency) * 1.1) + 100
    times = service(rng, count)
    if servers == 1:
        ends = np.cumsum(times)
        starts = np.concatenate((np.zeros(concurrency), ends))[:count]
        return rows_of(starts, ends)
    free = [0.0] * servers
    sent = [0.0] * concurrency
    starts, ends = np.empty(count), np.empty(count)
    for i, time in enumerate(times.tolist()):
        starts[i] = heapq.heappop(sent)
        ends[i] = max(starts[i], heapq.heappop(free)) + time
        heapq.heappush(free, ends[i])
        heapq.heappush(sent, ends[i])
    return rows_of(starts, ends)


def open_loop(
    rng: np.random.Generator, service: Service, *, rate: float, servers: int, seconds: float
) -> Rows:
    """Poisson arrivals, whatever becomes of those before them, served first come first served."""
    count = int(rate * seconds * 1.05) + 100
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    times = service(rng, count)
    if servers == 1:
        # the n-th departure is the latest of all arrivals before it with all service since (Lindley)
        done = np.cumsum(times)
        ends = done + np.maximum.accumulate(arrivals - (done - times))
        return rows_of(arrivals, ends)
    free = [0.0] * servers
    ends = np.empty(count)
    for i, (arrival, time) in enumerate(zip(arrivals.tolist(), times.tolist(), strict=True)):
        ends[i] = max(arrival, heapq.heappop(free)) + time
        heapq.heappush(free, ends[i])
    return rows_of(arrivals, ends)


def rows_of(starts: Seconds, ends: Seconds) -> Rows:
    """Records of successful requests, in the order in which they ended."""
    order = np.argsort(ends, kind="stable")
    rows = np.zeros(len(ends), dtype=ROW)
    for name, values in (("start_ns", starts), ("end_ns", ends)):
        rows[name] = (values[order] * 1e9).astype(np.int64)
    rows["intended_ns"] = rows["sent_ns"] = rows["start_ns"]
    rows["first_byte_ns"] = rows["end_ns"]
    rows["status"] = SUCCESS
    rows["responses"] = 1
    return rows


def records_of(rows: Rows) -> Records:
    """Records of a whole run that is already over."""
    records = Records()
    records.extend(rows)
    return records


def measured(rows: Rows, level: Level, settings: LevelSettings) -> LevelResult:
    """What the load generator makes of a run, window by window, until it has seen enough."""
    ledger = LevelLedger(records_of(rows), settings, level, 1)
    ledger.begin(_border(0, 0))
    time_ns = 0
    while True:
        time_ns += settings.window_ns
        ledger.close(_border(time_ns, ledger.index_at(time_ns)))
        if ledger.done:
            break
    assert time_ns <= rows["end_ns"][-1], "the simulated run is too short"
    return result_of(ledger, Ending(failures={}, failed=0, interrupted=False))


def result_of(ledger: LevelLedger, ending: Ending) -> LevelResult:
    """The result of a level on a server without statistics."""
    return level_result(ledger.measured(lambda *_: None, ending))


def _border(time_ns: int, index: int) -> WindowBorder:
    return WindowBorder(time_ns=time_ns, index=index, server=None, cpu_ns=0, read_ns=time_ns)


@dataclass(frozen=True)
class Truth:
    """What is known of a queue: inferences per second, the mean latency, and its distribution, in seconds."""

    throughput: float
    mean_s: float
    tail: Callable[[float], float]
    """P[latency > t]."""

    def quantile_s(self, percentile: float) -> float:
        low, high = 0.0, self.mean_s
        while self.tail(high) > 1 - percentile / 100:
            low, high = high, high * 1.5
        for _ in range(60):
            middle = (low + high) / 2
            if self.tail(middle) > 1 - percentile / 100:
                low = middle
            else:
                high = middle
        return low


def mm1_closed(concurrency: int, mean_s: float) -> Truth:
    """One exponential server that never rests: a request waits for all the others; Erlang distributed."""

    def tail(t: float) -> float:
        x = t / mean_s
        return (
            math.fsum(math.exp(k * math.log(x) - x - math.lgamma(k + 1)) for k in range(concurrency))
            if x
            else 1.0
        )

    return Truth(1 / mean_s, concurrency * mean_s, tail)


def mmc_open(rate: float, mean_s: float, servers: int) -> Truth:
    """M/M/c: Erlang's C formula."""
    load = rate * mean_s
    terms = [load**k / math.factorial(k) for k in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    waits = last / (math.fsum(terms) + last)
    drain, serve = (servers - load) / mean_s, 1 / mean_s

    def tail(t: float) -> float:
        served = math.exp(-serve * t)
        both = (
            serve / (serve - drain) * (math.exp(-drain * t) - served) + served
            if serve != drain
            else ((1 + serve * t) * served)
        )
        return (1 - waits) * served + waits * both

    return Truth(rate, waits / drain + mean_s, tail)


def md1_open(rate: float, service_s: float) -> Truth:
    """M/D/1: Pollaczek and Khinchine's mean, Erlang's distribution of the waiting time."""
    load = rate * service_s

    def tail(t: float) -> float:
        wait = t - service_s
        if wait < 0:
            return 1.0
        terms = []
        for k in range(int(wait / service_s) + 1):
            x = rate * (wait - k * service_s)  # alternating: (-x)**k / k! * exp(x), by its logarithm
            size = math.exp(k * math.log(x) + x - math.lgamma(k + 1)) if x > 0 else float(k == 0)
            terms.append((1 - load) * (-size if k % 2 else size))
        return 1 - math.fsum(terms)

    return Truth(rate, service_s + load * service_s / (2 * (1 - load)), tail)
