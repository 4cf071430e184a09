"""Records of earlier releases in the form that this tpx reads: schema 1 of tpx 0.2, streams of tpx 1.0."""

from typing import Any

Json = dict[str, Any]


def upgraded(record: Json) -> Json:
    """Return a record in today's form; what has it already stays as it is."""
    match record:
        case {"record": "run"}:
            models = (name.split(",") if isinstance(name, str) else name for name in record["models"])
            return record | {"models": list(models)}
        case {"record": "configuration"}:
            return record | {"configuration": _upgrade_configuration(record["configuration"])}
        case {"record": "measurement"}:
            return record | {"measurement": _upgrade_measurement(record["measurement"])}
    return record


def _upgrade_configuration(configuration: Json) -> Json:
    members = map(_upgrade_configuration, configuration.get("members", ()))
    return configuration | {"variant": _upgrade_variant(configuration["variant"]), "members": list(members)}


def _upgrade_variant(variant: Json) -> Json:
    members = list(map(_upgrade_variant, variant.get("members", ())))
    models = variant["model"].split(",") if "model" in variant else variant["models"]
    return variant | {"models": models, "members": members}


def _upgrade_measurement(old: Json) -> Json:
    """Return a measurement whose level holds the figures that stood beside it."""
    if "result" in old:
        streaming = old["result"].get("streaming")
        return old | {"result": old["result"] | {"streaming": streaming and _upgrade_streaming(streaming)}}
    load, windows = old["load"], old.get("windows", ())
    parts = {name: ns for name, ns in old.get("breakdown", {}).items() if ns is not None}
    estimates = _read_estimates(old)
    return {
        **{name: value for name, value in old.items() if name not in _MOVED},
        "members": list(map(_upgrade_measurement, old.get("members", ()))),
        "result": {
            "level": {"mode": load.get("kind", "concurrency"), "value": load["value"]},
            "batch_size": load.get("batch_size", 1),
            "stable": old.get("stable", True),
            # shown word for word
            "guesses": [old["note"]] if old.get("note") else [],
            "requests": old.get("requests", 0),
            "throughput_infer_per_s": old["throughput"],
            "latency": _upgrade_latency(old.get("latency") or {}),
            "server": _read_server(parts),
            "client": _read_client(parts),
            "streaming": _read_streaming(old.get("answers")),
            "estimates": estimates,
            "windows": list(map(_upgrade_window, windows)),
            "kept_windows": len(windows),
        },
    }


_MOVED = (
    *("throughput", "latency", "breakdown", "stable", "note", "requests", "answers"),
    *("throughput_range", "p99_range", "windows"),
)


def _upgrade_latency(old: Json) -> Json | None:
    known = {name: ns for name, ns in old.items() if ns is not None}
    if not known:
        return None
    return {
        "count": 0,
        "mean_ns": known.get("avg_ns", 0),
        "std_ns": 0.0,
        "min_ns": known.get("min_ns", 0),
        "max_ns": known.get("max_ns", 0),
        "percentiles_ns": {float(name[1:3]): ns for name, ns in known.items() if name[1:3].isdecimal()},
    }


def _read_server(parts: Json) -> Json | None:
    """Return the means as the times of a single request."""
    names = ("queue_ns", "compute_input_ns", "compute_infer_ns", "compute_output_ns")
    known = {name: parts[name] for name in names if name in parts}
    counts = {"success_count": 1, "queue_count": 1, "compute_count": 1}
    return {"model": "", "version": "", **known, **counts} if known else None


def _read_client(parts: Json) -> Json | None:
    if "client_response_wait_ns" not in parts:
        return None
    sent_ns = parts.get("client_send_recv_ns", 0)
    return {"send_ns": sent_ns, "wait_ns": parts["client_response_wait_ns"], "receive_ns": 0}


def _read_streaming(answers: Json | None) -> Json | None:
    if answers is None:
        return None
    first, between = (_upgrade_latency(answers[name] or {}) for name in ("first", "between"))
    return _upgrade_streaming(
        {
            "responses": 0,
            "responses_per_s": answers["throughput"],
            "first_response": first,
            "inter_response": between,
        }
    )


def _upgrade_streaming(old: Json) -> Json:
    """Return the responses of tpx 1.0 with their times among the figures."""
    named = {"ttft": old.get("first_response"), "icl": old.get("inter_response")}
    figures = [{"name": name, "summary": summary} for name, summary in named.items() if summary]
    return {"figures": figures} | {
        name: value for name, value in old.items() if not name.endswith("_response")
    }


def _read_estimates(old: Json) -> Json | None:
    if not old.get("throughput_range"):
        return None
    p99 = old.get("p99_range")
    value = (old.get("latency") or {}).get("p99_ns")
    return {
        "throughput": {"value": old["throughput"], **old["throughput_range"]},
        "latency": [{"percentile": 99.0, "interval": {"value": value, **p99}}] if p99 and value else [],
    }


def _upgrade_window(old: Json) -> Json:
    return {
        **dict.fromkeys(("start_ns", "end_ns", "requests", "failed"), 0),
        "throughput_infer_per_s": old["throughput"],
        "latency": _upgrade_latency(old["latency"]),
        "client_busy": 0.0,
        "stabilizing_percentile": None,
    }
