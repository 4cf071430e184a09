"""--metrics-config: every setting, and words for every mistake."""

import pytest

from tpx.errors import UsageError
from tpx.serving.distributions.settings import LatencySettings, Quantile, parse_latency_settings


def test_without_flags_there_are_counters_only() -> None:
    assert parse_latency_settings([]) == LatencySettings(
        counter_latencies=True,
        summary_latencies=False,
        histogram_latencies=False,
        summary_quantiles=(
            Quantile(0.5, 0.05),
            Quantile(0.9, 0.01),
            Quantile(0.95, 0.001),
            Quantile(0.99, 0.001),
            Quantile(0.999, 0.001),
        ),
    )


def test_each_setting_is_a_flag_of_its_own() -> None:
    settings = parse_latency_settings(
        [
            "counter_latencies=false",
            "summary_latencies=true",
            "histogram_latencies=1",
            "summary_quantiles=0.5:0.05, 0.99:0.002",
        ]
    )
    assert settings == LatencySettings(
        counter_latencies=False,
        summary_latencies=True,
        histogram_latencies=True,
        summary_quantiles=(Quantile(0.5, 0.05), Quantile(0.99, 0.002)),
    )
    assert settings.quantile_error == 0.002


def test_the_later_of_two_wins() -> None:
    settings = parse_latency_settings(["summary_latencies=true", "summary_latencies=OFF"])
    assert not settings.summary_latencies


def test_buckets_are_set_by_histogram() -> None:
    queue, request = (f"nv_inference_{phase}_duration_histogram_us" for phase in ("queue", "request"))
    flags = [
        f"histogram_buckets={queue}:1",
        f"histogram_buckets={request}:0.5,10",
        f"histogram_buckets={queue}:2",
    ]
    assert parse_latency_settings(flags).histogram_buckets == {queue: (2.0,), request: (0.5, 10.0)}


REQUEST = "nv_inference_request_duration_histogram_us"


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        (
            "histogram_buckets=1,2",
            "no histogram '1,2' (there are: nv_inference_first_response_histogram_ms, ",
        ),
        (f"histogram_buckets={REQUEST}s:1", f"(did you mean '{REQUEST}'?)"),
        (f"histogram_buckets={REQUEST}", "must be <histogram>:<bound>,..."),
        (f"histogram_buckets={REQUEST}:1,inf", "finite bounds"),
        (f"histogram_buckets={REQUEST}:2,1", f"got '{REQUEST}:2,1'"),
        ("summary_latencies", "--metrics-config option format is '<setting>=<value>'. Got summary_latencies"),
        ("=true", "option format is '<setting>=<value>'. Got =true"),
        ("summary_latencies=", "option format is '<setting>=<value>'. Got summary_latencies="),
        ("summary_latency=true", "unknown setting 'summary_latency' (did you mean 'summary_latencies'?)"),
        ("x=true", "unknown setting 'x' (there are: counter_latencies, summary_latencies, "),
        ("counter_latencies=maybe", "counter_latencies must be true or false, got 'maybe'"),
        ("summary_quantiles=0.5", "got '0.5'"),
        ("summary_quantiles=0.5:0.01,", "got ''"),
        ("summary_quantiles=a:0.01", "got 'a:0.01'"),
        ("summary_quantiles=1:0.01", "quantiles between 0 and 1"),
        ("summary_quantiles=0:0.01", "quantiles between 0 and 1"),
        ("summary_quantiles=nan:0.01", "quantiles between 0 and 1"),
        ("summary_quantiles=0.5:0", "errors between 1e-05 and 1"),
        ("summary_quantiles=0.5:1", "errors between 1e-05 and 1"),
        ("summary_quantiles=0.5:nan", "errors between 1e-05 and 1"),
        ("summary_quantiles=0.5:0.1,0.5:0.2", "names a quantile twice"),
    ],
)
def test_a_mistake_is_told(flag: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_latency_settings([flag])
    assert words in caught.value.message
