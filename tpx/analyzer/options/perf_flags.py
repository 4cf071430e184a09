"""`perf_analyzer_flags` and `genai_perf_flags`: options of other load generators, mapped to those of
`tpx perf`.

Flags that the analyzer sets itself have no effect, as in Model Analyzer, but cause a warning that names
the option to use.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tpx.analyzer.search.ranges import ModelParameters
from tpx.analyzer.values import Flags, numbers
from tpx.argv import given_in_argv
from tpx.errors import UsageError
from tpx.options import TRUE_WORDS, fields_of, nearest
from tpx.perf.inputs.base import length_warning
from tpx.perf.options import SessionSpec
from tpx.perf.options.aiperf import ENDPOINTS, translate
from tpx.perf.options.ranges import parse_intervals

RENAMED: Mapping[str, str] = {"http-header": "header"}
"""Keys of Model Analyzer that are not long options of perf_analyzer -> option of tpx perf."""

DECIDED: Mapping[str, str] = {
    "model-name": "profile_models",
    "model": "profile_models",
    "url": "triton_http_endpoint or triton_grpc_endpoint",
    "protocol": "client_protocol",
    "measurement-interval": "measurement_interval",
    "stability-percentage": "stability_percentage",
    "max-trials": "max_trials",
    "latency-threshold": "constraints: perf_latency_p99",
    "binary-search": "run_config_search_max_binary_search_steps",
    "service-kind": "triton_launch_mode, or model_type LLM",
    "model-repository": "model_repository",
    "triton-server-directory": "triton_install_path",
    "bls-composing-models": "bls_composing_models",
    "latency-report-file": "filename_model_inference",
    "csv": "filename_model_inference",
    "json": "export_path",
    "verbose-csv": "inference_output_fields",
    "collect-metrics": "monitoring_interval",
    "metrics-url": "triton_metrics_url",
    "metrics-interval": "monitoring_interval",
    "verbose": "perf_output",
    "extra-verbose": "perf_output",
}
"""Flags that the analyzer sets itself -> the option that controls them."""

LOADS: Mapping[str, str] = {
    "concurrency-range": "concurrency",
    "request-rate-range": "request_rate",
    "request-intervals": "request_rate",
    "batch-size": "batch_sizes",
}
"""Flags of the load -> the field of the model's parameters that they replace."""
NO_LOADS = ("fixed-schedule", "periodic-concurrency-range", "session-concurrency")
"""Loads of tpx perf under which configurations cannot be compared."""

OBEYED = frozenset({"measurement-interval", "stability-percentage", "max-trials"})
"""Flags in DECIDED that are honored, so that a model may override the run."""


def perf_words(flags: Flags) -> tuple[str, ...]:
    """Return arguments for `tpx perf`; switches have no value. Raises UsageError for an unknown flag."""
    fields = {name.lstrip("-"): field for field in fields_of(SessionSpec) for name in field.spellings}
    words: list[str] = []
    for name, values in flags.items():
        known = RENAMED.get(name, name)
        if known in NO_LOADS:
            raise UsageError(
                f"{name}: configurations are compared under a concurrency, a request "
                "rate, or request-intervals"
            )
        if (known in DECIDED and known not in OBEYED) or (known in LOADS and known != "request-intervals"):
            continue
        field = fields.get(known)
        if field is None:
            near = nearest(name, (*fields, *DECIDED, *LOADS, *RENAMED))
            raise UsageError(f"unknown option '{name}'{near}")
        for value in values:
            if not field.is_switch:
                words.append(f"--{known}={value}")
            elif value.lower() in TRUE_WORDS | {""}:
                words.append(f"--{known}")
    return tuple(words)


def flag_loads(flags: Flags, own: ModelParameters) -> ModelParameters:
    """Return a model's loads, with those that its flags set replaced, as in Model Analyzer.

    A file of intervals becomes one load at its mean rate. Raises UsageError for several kinds of load.
    """
    given = [name for name in LOADS if flags.get(name)]
    kinds = [name for name in given if name != "batch-size"]
    if len(kinds) > 1:
        raise UsageError(f"perf_analyzer_flags: {kinds[0]} and {kinds[1]} are mutually exclusive")
    if kinds:
        own = replace(own, concurrency=(), request_rate=())
    for name in given:
        text, parts = flags[name][-1], flags[name][-1].split(":")
        stepped = dict(zip(("start", "stop", "step"), parts, strict=False))
        try:
            if name == "request-intervals":
                stepped, text = {}, str(max(1, round(parse_intervals(text).rate)))
            values = numbers(stepped if len(stepped) > 1 else text)
        except ValueError as exc:
            raise UsageError(f"perf_analyzer_flags: {name}: {exc}") from exc
        own = replace(own, **{LOADS[name]: values})
    return own


def perf_warnings(flags: Flags) -> tuple[str, ...]:
    """Return a warning for each flag without effect, naming the option to use, and for unused values."""
    lines = [
        f"{name} has no effect, tpx analyze sets it: see {DECIDED[name]}"
        for name in flags
        if name in DECIDED and name not in OBEYED
    ]
    lines += filter(None, (length_warning(int(value)) for value in flags.get("sequence-length", ())[-1:]))
    return tuple(f"perf_analyzer_flags: {line}" for line in lines)


GENAI_TAKEN = (
    "url", "random-seed", "input-tokens-mean", "input-tokens-stddev", "expected-output-tokens",
    "num-of-output-prompts", "goodput",
)  # fmt: skip
"""Flags that `tpx perf` reads, too."""
GENAI_INSTEAD: Mapping[str, str] = {
    "input-dataset": "give the requests as perf_analyzer_flags: input-data",
    "input-type": "give the requests as perf_analyzer_flags: input-data",
}
"""Flags for features of genai-perf that tpx lacks -> what to use instead."""
GENAI_NEEDLESS: Mapping[str, str] = {
    "tokenizer": "the service counts its tokens",
    "backend": "models are called through the OpenAI API, whatever runs them",
}
"""Flags that tpx does not need -> reason."""
GENAI_SERVICE = ("endpoint", "endpoint-type", "service-kind", "streaming")


def language_model(flags: Flags) -> dict[str, Any]:
    """Return a language model's options of tpx perf by name. Raises UsageError naming the alternative."""
    known = (*GENAI_TAKEN, *GENAI_INSTEAD, *GENAI_NEEDLESS, *GENAI_SERVICE)
    endpoint, words = "", []
    for name, values in flags.items():
        value = values[-1] if values else ""
        if name in GENAI_INSTEAD:
            raise UsageError(f"genai_perf_flags: {name}: {GENAI_INSTEAD[name]}")
        if name == "service-kind" and value != "openai":
            raise UsageError(f"genai_perf_flags: service-kind {value}: tpx measures openai alone")
        if name == "streaming" and value.lower() in ("false", "0", "off"):
            raise UsageError(
                "genai_perf_flags: streaming: false: without a stream there are no tokens to time"
            )
        if name == "endpoint-type" and value not in ENDPOINTS:
            raise UsageError(
                f"genai_perf_flags: endpoint-type: unknown type '{value}'{nearest(value, ENDPOINTS)}"
            )
        if name == "endpoint-type":
            endpoint = endpoint or ENDPOINTS[value]
        elif name == "endpoint":
            endpoint = value
        elif name in GENAI_TAKEN:
            words.append(f"--{name}={value}")
        elif name not in known:
            raise UsageError(f"genai_perf_flags: unknown option '{name}'{nearest(name, known)}")
    return {**given_in_argv(SessionSpec, translate(words)), "endpoint": endpoint or ENDPOINTS["chat"]}


def language_warnings(flags: Flags, model_type: str) -> tuple[str, ...]:
    """Return a warning for each flag without effect."""
    if model_type != "LLM":
        return ("genai_perf_flags change nothing: they are for model_type LLM",) if flags else ()
    return tuple(
        f"genai_perf_flags: {name} has no effect: {GENAI_NEEDLESS[name]}"
        for name in flags
        if name in GENAI_NEEDLESS
    )
