"""How language models are reached and timed: genai-perf's flags, and the figures of streamed answers."""

from dataclasses import replace

import pytest

from tests.analyzer.conftest import Replay
from tests.analyzer.measuring import make_latency, make_measurement, make_streaming
from tests.analyzer.reports.rendered import view_of
from tpx.analyzer.metrics import joules_per_inference, metric, shown
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.options.perf_flags import language_model, language_warnings
from tpx.analyzer.reports.files import markdown_text
from tpx.analyzer.reports.grids import users_grid
from tpx.analyzer.reports.view import Prices
from tpx.analyzer.results.goals import WeightedObjective
from tpx.analyzer.results.journal import VariantPrepared
from tpx.analyzer.results.measurement import EnergyUse, LoadPoint, Measurement, Variant
from tpx.analyzer.results.pooled import pooled
from tpx.analyzer.values import read_constraints
from tpx.errors import UsageError
from tpx.options import build
from tpx.perf.inputs.prompts import Length
from tpx.perf.results import Goodput, StreamFigure, Streaming
from tpx.perf.statistics.intervals import Interval
from tpx.perf.statistics.summaries import LatencySummary


def spread(first_ns: int) -> LatencySummary:
    return make_latency(min_ns=first_ns, max_ns=9 * first_ns, avg_ns=5 * first_ns, p99_ns=8 * first_ns)


MEASURED = make_measurement(
    variant="llm_config_default",
    load=LoadPoint(value=1),
    throughput=20.0,
    answers=make_streaming(first=spread(1_000_000), between=spread(100_000), per_s=640.0),
    energy=EnergyUse(duration_ns=2_000_000_000, gpu_j=300.0, cpu_j=100.0),
)


def test_tokens_have_model_analyzers_metrics() -> None:
    values = {
        tag: metric(tag).value(MEASURED) for tag in ("time_to_first_token_p99", "inter_token_latency_min")
    }
    assert values == {"time_to_first_token_p99": 8.0, "inter_token_latency_min": 0.1}
    assert metric("output_token_throughput").value(MEASURED) == 640.0
    assert shown(metric("output_token_throughput"), 640.0) == "640 tokens/s"
    assert metric("time_to_first_token_p25").value(MEASURED) is None
    plain = make_measurement(variant="m", load=LoadPoint(value=1), throughput=1.0)
    assert metric("inter_token_latency_avg").value(plain) is None


def test_good_requests_and_the_speed_of_a_user_are_metrics_of_means_too() -> None:
    def measured(per_s: float, itl_ns: int) -> Measurement:
        figures = (StreamFigure(name="itl", summary=make_latency(p50_ns=itl_ns, p99_ns=itl_ns)),)
        streaming = Streaming(responses=2, responses_per_s=2.0, figures=figures, units=5)
        good = Goodput(
            requests=3, share=0.5, per_s=Interval(value=per_s, low=1.0, high=9.0), bounds=("ttft<1ms",)
        )
        made = make_measurement(variant="m", load=LoadPoint(value=1), throughput=1.0)
        return replace(made, result=replace(made.result, streaming=streaming, goodput=good))

    one = measured(4.0, 20_000_000)
    assert metric("goodput").value(one) == 4.0
    assert metric("output_token_throughput_per_user").value(one) == 50.0
    both = pooled([one, measured(6.0, 30_000_000)])
    assert metric("goodput").value(both) == 5.0
    assert metric("inter_token_latency_p99").value(both) == 25.0
    assert both.result.streaming is not None
    assert both.result.streaming.units == 10


def test_a_language_model_is_to_generate_tokens_unless_told_otherwise() -> None:
    def objectives(**more: object) -> list[str]:
        return [each.tag for each in build(ProfileSpec, {"model_type": "LLM", **more}).goals.objectives]

    assert objectives() == ["output_token_throughput"]
    assert objectives(objectives=(WeightedObjective(tag="goodput"),)) == ["goodput"]
    assert objectives(model_type="generic") == ["perf_throughput"]


def test_an_inference_has_its_joules_and_its_price() -> None:
    assert joules_per_inference(MEASURED) == pytest.approx(10.0)
    assert metric("energy_per_inference").value(MEASURED) == pytest.approx(10.0)
    idle = EnergyUse(duration_ns=1_000_000_000, cpu_j=50.0)
    assert joules_per_inference(MEASURED, idle) == pytest.approx(7.5)
    assert Prices(per_hour=3.6).cost_per_million(MEASURED) == pytest.approx(50.0)


def test_flags_of_genai_perf_are_those_of_tpx_perf() -> None:
    asked = language_model({"url": ("host:9000",), "endpoint-type": ("completions",), "streaming": ("true",)})
    assert asked == {"endpoint": "v1/completions", "url": "host:9000"}
    assert language_model({}) == {"endpoint": "v1/chat/completions"}
    lengths = {"input-tokens-mean": ("64",), "input-tokens-stddev": ("8",), "expected-output-tokens": ("16",)}
    assert language_model({**lengths, "num-of-output-prompts": ("7",), "random-seed": ("3",)}) == {
        "endpoint": "v1/chat/completions",
        "input_tokens": Length(64, 8.0),
        "output_tokens": Length(16),
        "prompts": 7,
        "seed": 3,
    }
    assert language_model({"endpoint": ("v2/chat",), "endpoint-type": ("chat",)}) == {"endpoint": "v2/chat"}


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("input-dataset", "cnn", "give the requests as perf_analyzer_flags"),
        ("service-kind", "triton", "tpx measures openai alone"),
        ("streaming", "false", "without a stream"),
        ("endpoint-type", "chatt", "did you mean 'chat'"),
        ("ulr", "x", "unknown option 'ulr' .did you mean 'url'"),
    ],
)
def test_what_is_measured_otherwise_is_refused_with_what_to_do(flag: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"genai_perf_flags: .*{message}"):
        language_model({flag: (value,)})


def test_what_changes_nothing_is_said() -> None:
    assert language_warnings({"backend": ("vllm",)}, "LLM") == (
        "genai_perf_flags: backend has no effect: models are called through the OpenAI API, whatever runs "
        "them",
    )
    assert "they are for model_type LLM" in language_warnings({"url": ("x",)}, "generic")[0]
    assert language_warnings({}, "generic") == ()


def test_a_language_model_is_asked_over_the_openai_api() -> None:
    models = (ModelToProfile(name="llm", genai_perf_flags={"url": ("host:9000",)}),)
    session = build(ProfileSpec, {"profile_models": models, "model_type": "LLM"}).sessions["llm"]
    assert (session.address, session.target.protocol) == ("host:9000", "http")
    assert (session.service.service_kind, session.service.endpoint) == ("openai", "v1/chat/completions")
    assert session.wire.streaming


def test_a_price_is_above_nothing() -> None:
    with pytest.raises(UsageError, match="--price-per-hour must be above 0"):
        build(ProfileSpec, {"price_per_hour": 0.0})


def engine(variant: Variant, load: LoadPoint) -> Measurement:
    """An engine whose step takes 4 ms and 0.25 ms for each sequence, half of that with two threads; of 128
    tokens each. More than 16 sequences do not fit its caches.
    """
    given = {name: int(value["string_value"]) for name, value in variant.delta.get("parameters", {}).items()}
    groups = variant.delta.get("instance_group") or [{"count": 1}]
    instances, parallel, threads = groups[0]["count"], given.get("n_parallel", 4), given.get("threads", 1)
    active = min(load.value / instances, parallel)
    step_ms = (4 + 0.25 * active * (4 if active > 16 else 1)) * instances / min(2, threads * instances)
    tokens_per_s = active * instances * 1000 / step_ms
    waits_ms = max(0.0, load.value / instances - parallel) / active * step_ms * 128
    first, between = (
        make_latency(p50_ns=round(ms * 1e6), p99_ns=round(ms * 1e6)) for ms in (waits_ms + 20, step_ms)
    )
    figures = (StreamFigure(name="ttft", summary=first), StreamFigure(name="itl", summary=between))
    made = make_measurement(variant=variant.name, load=load, throughput=tokens_per_s / 128)
    streaming = Streaming(
        responses=2, responses_per_s=1.0, figures=figures, units=128, units_per_s=tokens_per_s
    )
    return replace(made, result=replace(made.result, streaming=streaming))


def test_a_search_finds_the_engines_parameters_and_what_users_get(replay: Replay) -> None:
    run = replay(
        engine,
        default={"name": "alexnet", "backend": "llamacpp", "max_batch_size": 0},
        model_type="LLM",
        cores=2,
        constraints=read_constraints({"time_to_first_token_p99": {"max": 100}}),
        max_measurements=60,
        final_rounds=0,
    )
    view = view_of(run).models[0]
    best = view.verdict.ranking[0]
    assert best.run.variant.delta["parameters"]["n_parallel"] == {"string_value": "16"}
    assert best.figures.load.value == 16
    assert best.satisfies
    table = users_grid("users", view)
    assert table is not None
    headers = [column.header for column in table.columns]
    rows = [dict(zip(headers, (cell.sort for cell in row.cells), strict=True)) for row in table.rows]
    total, own = ([float(row[name]) for row in rows] for name in ("tokens/s", "tokens/s of a user"))
    assert total == sorted(total, reverse=True)
    assert own == sorted(own)
    assert rows[0]["n_parallel"] == "16"
    text = markdown_text(view_of(run))
    assert "n\\_parallel" in text
    assert "tokens/s of a user" in text
    told = VariantPrepared(
        model="alexnet", variant=best.name, how="loaded", answers="6 of 8 greedy answers are the default's"
    )
    (model,) = run.models
    again = replace(run, models=(replace(model, preparations=(told,)),))
    assert "| 6 of 8 |" in markdown_text(view_of(again))


def test_a_search_with_little_budget_tries_what_fits_the_cores(replay: Replay) -> None:
    """Of one to five instances two fit two cores, which the middle of the range is not."""
    run = replay(
        engine,
        default={"name": "alexnet", "backend": "llamacpp", "max_batch_size": 0},
        model_type="LLM",
        cores=2,
        max_measurements=9,
        final_rounds=0,
    )
    assert len(run.models[0].variants) > 2
