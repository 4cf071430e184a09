"""The figures of streams against what the service really did, in virtual time: all of the client runs, but
nothing takes time that the service does not take."""

from collections.abc import Sequence
from statistics import fmean

import pytest

from tests.perf.measure.known_tokens import FIRST_S, GAP_S, Stream, measured
from tpx.perf.measure.streams import SPANS
from tpx.perf.results import StreamFigure
from tpx.perf.statistics.summaries import rank


def truth(happened: Sequence[Stream]) -> dict[str, list[int]]:
    """The values of each figure over all requests, in order."""
    each = [stream.figures for stream in happened]
    return {name: sorted(value for figures in each for value in figures[name]) for name in each[0]}


@pytest.mark.parametrize("streams", [1, 3, 16, 64])
def test_every_figure_is_the_services(streams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = 4 * streams + 3
    goodput = f"--goodput ttft<{1500 * FIRST_S:g}ms,itl<{2500 * GAP_S:g}ms"
    level, happened = measured(
        monkeypatch, f"--concurrency-range {streams} --request-count {requests} {goodput}"
    )
    assert (level.requests, level.failed, len(happened)) == (requests, 0, requests)
    assert level.streaming is not None
    assert level.latency is not None
    found = {each.name: each for each in level.streaming.figures}
    found["latency"] = StreamFigure(name="latency", summary=level.latency)
    for name, values in truth(happened).items():
        summary = found[name].summary
        assert summary.count == len(values), name
        assert found[name].mean == pytest.approx(fmean(values), rel=1e-6), name
        for percentile in (50.0, 90.0, 99.0):
            assert summary.at(percentile) == pytest.approx(values[rank(percentile, len(values))]), name
        assert (summary.min_ns, summary.max_ns) == (min(values), max(values)), name
    spans = level.streaming.spans
    assert len(spans) == min(requests, SPANS)
    begun = min(stream.received_ns for stream in happened)
    real = [[at - begun for at in (s.received_ns, s.left_ns[0], s.left_ns[-1])] for s in happened]
    if requests <= SPANS:
        assert [[s.due_ns, s.first_ns, s.end_ns] for s in spans] == sorted(real)
    lasted_s = (max(s.ended_ns for s in happened) - min(s.received_ns for s in happened)) / 1e9
    assert level.streaming.units_per_s == pytest.approx(sum(s.tokens for s in happened) / lasted_s, rel=0.01)
    # late is who begins late, and slow is a stall that is long for three tokens
    good = sum(s.manner.first == 1 and sum(s.manner.gaps) < 2.5 * (s.tokens - 1 or 1) for s in happened)
    assert 0 < good < requests
    assert level.goodput is not None
    assert level.goodput.requests == good
    assert level.goodput.per_s.value == pytest.approx(good / lasted_s, rel=0.01)


@pytest.mark.parametrize("rule", ["pa", "ci"])
def test_windows_have_the_streams_that_ended_in_them(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    level, happened = measured(monkeypatch, f"--concurrency-range 8 --stability {rule} -p 3000 -r 6 -s 30")
    kept = level.windows[-level.kept_windows :]
    begin_ns, end_ns = kept[0].start_ns, kept[-1].end_ns
    inside = [s for s in happened if begin_ns < s.ended_ns <= end_ns]
    assert level.requests == len(inside) > 50
    assert level.streaming is not None
    found = {each.name: each for each in level.streaming.figures}
    for name, values in truth(inside).items():
        if name != "latency":
            assert found[name].summary.count == len(values), name
            assert found[name].mean == pytest.approx(fmean(values), rel=1e-6), name
    seconds = (end_ns - begin_ns) / 1e9
    assert level.streaming.units_per_s == pytest.approx(sum(s.tokens for s in inside) / seconds, rel=1e-6)
