"""Figures of requests that are answered by a stream: the times of each, its tokens, and goodput.

They are defined as in aiperf 0.13. Times count from when a request was due, in ns: to the first response
(`ttft`), from it to the second (`ttst`), to the first that is no reasoning (`ttfo`), and per token between
the first response and the last (`itl`). The first response is taken as one token, as services do not tell.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tpx.perf.measure.estimates import Estimator, Sample
from tpx.perf.objectives import Objective
from tpx.perf.records import SUCCESS, Records, ResponseTimes, Rows, response_times
from tpx.perf.results import Goodput, RequestSpan, StreamFigure
from tpx.perf.statistics.summaries import EXTRA_PERCENTILES, REPORTED_PERCENTILES, summarize
from tpx.protocol.tensors import Array

QUARTILES = (25.0, 75.0)
"""Percentiles besides the usual ones; Model Analyzer has objectives for them."""
SPANS = 80
"""Number of requests that are shown one by one."""
ABSENT = -1
"""Value of a request that lacks a figure: of one token, there is no time between tokens."""


def request_figures(rows: Rows, times: ResponseTimes) -> dict[str, Array]:
    """Return the figures of each request in ns by name; ABSENT where a request lacks one."""
    first, second, output = times.nth_ns(0), times.nth_ns(1), rows["first_output_ns"]
    due, further = rows["intended_ns"], rows["units"] - 1
    return {
        "ttft": np.where(first > 0, first - due, ABSENT),
        "ttst": np.where(second > 0, second - first, ABSENT),
        "ttfo": np.where(output > 0, output - due, ABSENT),
        "itl": np.where(
            (first > 0) & (further > 0), (rows["end_ns"] - first) // np.maximum(further, 1), ABSENT
        ),
    }


def stream_figures(sample: Sample, rows: Rows, times: ResponseTimes) -> tuple[StreamFigure, ...]:
    """Return the distributions over the successful requests of `rows`, of which `sample` is made.

    Besides the times, these are the gaps between consecutive responses (`icl`), and the tokens of the prompt
    and of the output; those that no request has are left out, and `ttfo` where it is `ttft`. Without tokens,
    there are only `ttft` and `icl`.
    """
    columns = request_figures(rows, times)
    if not rows["units"].any():
        columns = {"ttft": columns["ttft"]}
    elif not rows["reasoning_units"].any() and np.array_equal(columns["ttfo"], columns["ttft"]):
        del columns["ttfo"]
    samples = {name: _only(sample, column, column >= 0) for name, column in columns.items()}
    counts, good = np.diff(times.starts), rows["status"] == SUCCESS
    owners = np.repeat(np.arange(len(rows)), np.where(good, np.maximum(counts - 1, 0), 0))
    samples["icl"] = replace(
        sample,
        ends=sample.ends[owners],
        latencies=times.only(good).gaps_ns(),
        ok=np.ones(len(owners), dtype=np.bool_),
    )
    for name, column in (("input_tokens", rows["prompt_units"]), ("output_tokens", rows["units"])):
        samples[name] = _only(sample, column, column > 0)
    return tuple(_summarize(name, found) for name, found in samples.items() if found.requests)


def request_spans(rows: Rows, times: ResponseTimes) -> tuple[RequestSpan, ...]:
    """Return the last of the successful requests of `rows` in time."""
    first = times.nth_ns(0)
    last = np.flatnonzero((rows["status"] == SUCCESS) & (first > 0))[-SPANS:]
    due, ends = rows["intended_ns"][last], rows["end_ns"][last]
    begun = int(due.min()) if len(last) else 0
    found = zip((due - begun).tolist(), (first[last] - begun).tolist(), (ends - begun).tolist(), strict=True)
    return tuple(RequestSpan(due_ns=d, first_ns=f, end_ns=e) for d, f, e in sorted(found))


def goodput(sample: Sample, bounds: Sequence[Objective]) -> Sample:
    """Return the sample of which only requests that meet every bound have succeeded.

    A request that lacks a figure, such as the time between its tokens, meets the bound on it.
    """
    ok = sample.ok
    for bound in bounds:
        values = sample.figures[bound.figure] if bound.figure else sample.latencies
        ok = ok & ~(bound.outside(values) & (values >= 0))
    return replace(sample, ok=ok)


def goodput_figures(sample: Sample, bounds: Sequence[Objective]) -> Goodput | None:
    """Return the requests per second that meet every bound; None without bounds or successful requests."""
    if not bounds or not sample.requests or sample.end_ns <= sample.start_ns:
        return None
    good = goodput(sample, bounds)
    return Goodput(
        requests=good.requests,
        share=good.requests / len(sample.ok),
        per_s=Estimator(good).throughput(1),
        bounds=tuple(bound.text for bound in bounds),
    )


def figures_of(records: Records, span: range) -> dict[str, Array]:
    """Return the figures of the requests in a span of rows."""
    return request_figures(records.between(span.start, span.stop), response_times(records, span))


def _only(sample: Sample, values: Array, present: Array) -> Sample:
    return replace(sample, latencies=values, ok=sample.ok & present)


def _summarize(name: str, sample: Sample) -> StreamFigure:
    estimator = Estimator(sample)
    percentiles = (None, *REPORTED_PERCENTILES, *EXTRA_PERCENTILES)
    return StreamFigure(
        name=name,
        summary=summarize(sample.good, QUARTILES),
        estimates=tuple(estimator.latency(p) for p in percentiles),
    )
