"""What makes the figures of a level doubtful: they contradict each other, the server's, or the plan."""

from collections.abc import Iterator
from dataclasses import dataclass

from tpx.perf.levels import CONCURRENCY, Level
from tpx.perf.results import ClientCheck, ServerBreakdown

LITTLES_TOLERANCE = 0.1
COUNT_TOLERANCE = 0.05
EDGE_REQUESTS = 10
"""So many requests, and those in flight, may lie on one side of a window's border for us and not for the
server."""
LATE_NS = 1_000_000
OWN_PROCESSOR = 0.95
"""A polling client that was busy for less of the time had no processor of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is compared: of the kept windows, `requests` and `in_flight` as the client saw them."""

    level: Level
    requests: int
    failed: int
    batch_size: int
    in_flight: float
    server: ServerBreakdown | None
    check: ClientCheck
    counted_run: bool
    polls: bool = False
    """The client polled: it is busy as long as it has a processor."""


def doubts(evidence: Evidence) -> Iterator[str]:
    """For a person, one sentence each."""
    yield from _littles_law(evidence)
    yield from _other_clients(evidence)
    yield from _late_requests(evidence)
    yield from _shared_processor(evidence)


def _littles_law(evidence: Evidence) -> Iterator[str]:
    """In a closed loop throughput times latency is the concurrency (Little 1961)."""
    level = evidence.level
    ended = evidence.requests + evidence.failed
    if level.kind is not CONCURRENCY or not evidence.requests:
        return
    if evidence.counted_run and ended < EDGE_REQUESTS * level.value:
        return  # its beginning and end, when fewer are in flight, are most of it
    off = abs(level.value - evidence.in_flight) / level.value
    if off > LITTLES_TOLERANCE:
        yield (
            f"Measurement inconsistent: by throughput and latency {evidence.in_flight:.2f} requests were in "
            f"flight, {off * 100:.0f}% off the concurrency of {level.value:g} (Little's law). Longer windows "
            "help where requests take nearly as long as one."
        )


def _other_clients(evidence: Evidence) -> Iterator[str]:
    server = evidence.server
    if server is None or not evidence.requests:
        return
    ours = evidence.requests * evidence.batch_size
    # what the cache answers is a success without an inference
    theirs = server.success_count * evidence.batch_size if server.response_cache else server.inference_count
    edge = (EDGE_REQUESTS + evidence.level.value) * evidence.batch_size
    if theirs and abs(theirs - ours) > max(COUNT_TOLERANCE * ours, edge):
        more = "more than" if theirs > ours else "fewer than"
        why = (
            "other clients use the model, and" if theirs > ours else "the statistics cover another time, and"
        )
        yield (
            f"The server counted {theirs} inferences, {abs(theirs - ours) / ours * 100:.0f}% {more} the "
            f"{ours} of this client: {why} the server's figures are not of this measurement alone."
        )


def _late_requests(evidence: Evidence) -> Iterator[str]:
    check = evidence.check
    if evidence.level.kind.open_loop and check.slip_p99_ns > LATE_NS:
        yield (
            f"Requests were sent late: one in a hundred by {check.slip_p99_ns / 1e6:.1f} ms or more, while "
            f"the client was busy {check.cpu_share * 100:.0f}% of the time. Latency counts from when they "
            "were due."
        )


def _shared_processor(evidence: Evidence) -> Iterator[str]:
    share = evidence.check.cpu_share
    if evidence.polls and share < OWN_PROCESSOR:
        yield (
            f"The polling client had a processor for {share * 100:.0f}% of the time only: others run there, "
            "and its latencies contain their turns. --poll busy needs a processor that nothing else uses."
        )
