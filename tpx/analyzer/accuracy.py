"""Check that a variant returns the same results as the default: seeded requests to both, outputs
compared.

A different execution provider, graph optimization level or precision may change the results; such a
variant is measured only once its outputs are within the tolerance.
"""

import asyncio
import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpx.analyzer.results.measurement import Variant
from tpx.errors import MeasurementError
from tpx.protocol.tensors import Array

REQUESTS = 3
TIMEOUT_S = 30.0
STRING_LENGTH = 8

Answers = Sequence[Mapping[str, Array]]
"""Outputs by name, one mapping per request."""

_INTEGERS = {f"TYPE_{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Settings for comparing outputs."""

    tolerance: float = 0.01
    """Tolerance for floats, relative to the output's greatest magnitude; all other types must match
    exactly.
    """
    seed: int = 0
    shapes: Mapping[str, Sequence[int]] | None = None
    """Shapes of inputs with dynamic dimensions, by name, without the batch dimension; unlisted
    dimensions are 1.
    """


def may_answer_otherwise(variant: Variant) -> bool:
    """Return True if the variant changes settings that may affect the model's results."""
    return "optimization" in variant.delta or any(map(may_answer_otherwise, variant.members))


def requests_of(config: Mapping[str, Any], gate: Gate) -> list[dict[str, Any]]:
    """Return requests as protocol JSON for a model with this configuration; the same seed gives the
    same requests.
    """
    chance = np.random.default_rng(gate.seed)
    batch = [1] if int(config.get("max_batch_size", 0)) > 0 else []
    found = []
    for _ in range(REQUESTS):
        inputs = []
        for each in config.get("input", ()):
            said = list((gate.shapes or {}).get(each["name"], ()))
            dims = said or [max(1, int(d)) for d in each.get("dims", ())]
            kind = str(each["data_type"])
            inputs.append(
                {
                    "name": each["name"],
                    "shape": batch + dims,
                    "datatype": "BYTES" if kind == "TYPE_STRING" else kind.removeprefix("TYPE_"),
                    "data": _data(kind, int(np.prod(dims, dtype=np.int64)), chance),
                }
            )
        found.append({"inputs": inputs})
    return found


async def ask(address: str, model: str, requests: Sequence[Mapping[str, Any]]) -> Answers:
    """Send the requests to the model at host:port over HTTP and return its outputs.

    Raises MeasurementError with the server's message.
    """
    return await asyncio.to_thread(lambda: [_ask(address, model, request) for request in requests])


def difference(reference: Answers, answers: Answers, gate: Gate) -> str:
    """Describe a difference beyond the tolerance; return an empty string if there is none."""
    for ours, theirs in zip(answers, reference, strict=True):
        missing = sorted(theirs.keys() - ours.keys())
        if missing:
            return f"its answers lack output '{missing[0]}'"
        for name, wanted in theirs.items():
            found = ours[name]
            if found.shape != wanted.shape:
                return f"output '{name}' has shape {list(found.shape)}, the default's {list(wanted.shape)}"
            reason = _differs(wanted, found, gate.tolerance)
            if reason:
                return f"output '{name}' {reason}"
    return ""


def _differs(wanted: Array, found: Array, tolerance: float) -> str:
    if not np.issubdtype(wanted.dtype, np.floating):
        differing = int((wanted != found).sum())
        return f"differs from the default's in {differing} of {wanted.size} elements" if differing else ""
    if not wanted.size:
        return ""
    if not (np.isfinite(wanted) == np.isfinite(found)).all():
        return "is not finite where the default's is, or the other way round"
    finite = np.isfinite(wanted)
    # an all-zero output is compared by absolute difference
    scale = float(np.abs(wanted[finite]).max(initial=0.0)) or 1.0
    worst = float(np.abs(wanted[finite] - found[finite]).max(initial=0.0)) / scale
    if worst <= tolerance:
        return ""
    return f"differs from the default's by {worst:.2%} of its greatest value (allowed: {tolerance:.2%})"


def _data(kind: str, count: int, chance: np.random.Generator) -> list[object]:
    if kind == "TYPE_STRING":
        return ["".join(map(str, chance.integers(0, 10, STRING_LENGTH))) for _ in range(count)]
    if kind == "TYPE_BOOL":
        return [bool(each) for each in chance.integers(0, 2, count)]
    if kind in _INTEGERS:
        return [int(each) for each in chance.integers(0, 10, count)]
    return [float(each) for each in chance.random(count)]


def _ask(address: str, model: str, request: Mapping[str, Any]) -> dict[str, Array]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", body=json.dumps(request).encode())
        response = connection.getresponse()
        body = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as exc:
        raise MeasurementError(f"the answers of '{model}' could not be compared: {exc}") from exc
    finally:
        connection.close()
    if response.status != 200:
        raise MeasurementError(f"the answers of '{model}' could not be compared: {body.get('error')}")
    return {output["name"]: _array(output) for output in body["outputs"]}


def _array(output: Mapping[str, Any]) -> Array:
    floating = str(output["datatype"]).startswith(("FP", "BF"))
    kind = np.float64 if floating else np.object_
    return np.asarray(output["data"], dtype=kind).reshape(output["shape"])
