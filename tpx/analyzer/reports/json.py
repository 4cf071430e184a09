"""A run as JSON: the verdicts, and every figure that the page shows."""

import math
from typing import Any

import msgspec

from tpx.analyzer.metrics import METRICS, joules_per_inference
from tpx.analyzer.objectives import RankedVariant, compliance_of
from tpx.analyzer.reports.view import ModelView, Prices, ReportView
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Measurement
from tpx.analyzer.results.run import VariantRun
from tpx.perf.objectives import Compliance
from tpx.perf.statistics.findings import Contrast
from tpx.report.files import json_text

SCHEMA = 2
"""Schema version; fields may be added without a new version, but none changes its meaning."""
MOST_EMBEDDED_BYTES = 700_000

Json = dict[str, Any]


def report_json(view: ReportView) -> Json:
    """Return the document; `tpx_analyze_report` is its version, and field names contain their units."""
    run = view.run
    return {
        "tpx_analyze_report": SCHEMA,
        "outcome": run.outcome,
        "reason": run.reason,
        "elapsed_s": round(run.elapsed_ns / 1e9, 3),
        "provenance": msgspec.to_builtins(run.started.provenance),
        "settings": run.started.settings,
        "goals": msgspec.to_builtins(run.started.goals),
        "server_only": msgspec.to_builtins(run.server_only),
        "models": [_encode_model(model) for model in view.models],
    }


def report_text(view: ReportView) -> str:
    """Return the document as indented text for a file."""
    return json_text(report_json(view))


def embedded_text(view: ReportView) -> str:
    """Return the document for a script element, of a large run only with each configuration's best load."""
    document = report_json(view)
    encoded = msgspec.json.encode(document)
    if len(encoded) > MOST_EMBEDDED_BYTES:
        for model in document["models"]:
            for configuration in model["configurations"]:
                best = configuration["best_load"]
                every = configuration["measurements"]
                configuration["measurements_left_out"] = sum(m["load"] != best for m in every)
                configuration["measurements"] = [m for m in every if m["load"] == best]
        encoded = msgspec.json.encode(document)
    text = encoded.decode()
    # a `</script>` in a value would end the element
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


_NOTHING: Json = {"satisfies": False, "best_load": None, "figures": None, "measurements": []}


def _encode_model(view: ModelView) -> Json:
    verdict, model, goals, prices = view.verdict, view.verdict.run, view.verdict.goals, view.report.prices
    conclusion, gain = verdict.conclusion, verdict.gain
    return {
        "model": model.model,
        "finding": verdict.finding.value,
        "verdict": verdict.sentence,
        "detail": verdict.detail,
        "recommended": view.verdict.recommended or None,
        "closest": verdict.best.name if verdict.best and not verdict.best.satisfies else None,
        "default": verdict.default.name if verdict.default else None,
        "gain_percent": verdict.gain_percent,
        "gain": None if gain is None else _encode_gain(gain),
        "candidate": verdict.candidate.name if verdict.candidate else None,
        "not_told_apart": list(verdict.alike),
        "measured_higher_once": [r.name for r in verdict.left_out],
        "noise": list(conclusion.noise) if conclusion else [],
        "configurations": [
            *(_encode_configuration(r, goals, prices) for r in verdict.ranking),
            *({**_encode_variant(v), **_NOTHING} for v in model.variants if not v.measurements),
        ],
        "failures": [msgspec.to_builtins(f) for f in model.failures],
        "unavailable": model.unavailable.reason if model.unavailable else None,
        "trace": [msgspec.to_builtins(d) for d in model.decisions],
    }


def _encode_gain(gain: Contrast) -> Json:
    return {
        "value": gain.value,
        "low": gain.low,
        "high": gain.high if math.isfinite(gain.high) else None,
        "confidence": gain.confidence,
        "p_value": gain.p_value,
        "finding": gain.finding,
        "rounds": gain.repeats,
    }


def _encode_configuration(ranked: RankedVariant, goals: Goals, prices: Prices) -> Json:
    figures = ranked.figures
    found = [METRICS[tag].interval(figures) for tag in ("perf_throughput", "perf_latency_p99")]
    ends = [None if each is None else [each.low, each.high] for each in found]
    return {
        **_encode_variant(ranked.run),
        "satisfies": ranked.compliance is Compliance.MET,
        "constraints": "missed" if ranked.compliance is Compliance.VIOLATED else ranked.compliance.value,
        "best_load": str(figures.load),
        "figures": {
            **_encode_figures(figures, prices),
            "throughput_interval": ends[0],
            "p99_interval_ms": ends[1],
        },
        "measurements": [_encode_measurement(m, goals, prices) for m in ranked.ordered],
        "repetitions": [_encode_measurement(m, goals, prices) for m in ranked.run.repetitions],
    }


def _encode_variant(variant: VariantRun) -> Json:
    configuration = variant.configuration
    return {
        "name": variant.variant.name,
        "default": variant.variant.is_default,
        "delta": variant.variant.delta,
        "instance_group": configuration.instance_group,
        "instances": configuration.instances,
        "max_batch_size": configuration.max_batch_size,
        "dynamic_batching": configuration.dynamic_batching,
        "members": [
            {"name": m.variant.name, "instance_group": m.instance_group} for m in configuration.members
        ],
    }


def _encode_measurement(measurement: Measurement, goals: Goals, prices: Prices) -> Json:
    out = {
        "load": str(measurement.load),
        "load_kind": measurement.load.kind,
        "load_value": measurement.load.value,
        "batch_size": measurement.load.batch_size,
        "round": measurement.round,
        "satisfies": compliance_of(measurement, goals) is Compliance.MET,
        "stable": measurement.stable,
        "requests": measurement.result.requests,
        **_encode_figures(measurement, prices),
    }
    if measurement.members:
        out["members"] = [
            {"variant": m.variant, "load": str(m.load), **_encode_figures(m, prices)}
            for m in measurement.members
        ]
    return out


def _encode_figures(measurement: Measurement, prices: Prices) -> Json:
    """Return figures by Model Analyzer's tags, in the units of its headers; unknown ones are omitted."""
    known = {tag: m.value(measurement) for tag, m in METRICS.items()}
    known |= {
        "cpu_percent": measurement.cpu_percent,
        "joules_per_inference": joules_per_inference(measurement),
        "joules_per_inference_above_idle": prices.joules_above_idle(measurement),
        "cost_per_million": prices.cost_per_million(measurement),
    }
    return {tag: round(value, 6) for tag, value in known.items() if value is not None}
