"""A model of 200 MB is loaded, used and unloaded, again and again: its memory is given back each time.

A dozen cycles, or UNLOAD_CYCLES (`make memory`: a hundred).
"""

import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.child import Child, serve
from tests.serving.onnx_files import heavy, save, write_model
from tests.soak.looks import MEGABYTE, Look

CYCLES = int(os.environ.get("UNLOAD_CYCLES", "12"))
MODEL_MB = 200
KEPT = 0.05
"""Share of one model's memory that may stay behind all cycles together."""
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [3, 4]}]}

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(120 + 10 * CYCLES)]


def post(child: Child, path: str, body: Any = None) -> Any:
    url = f"http://127.0.0.1:{child.port('HTTPService')}/v2/{path}"
    data = json.dumps(body).encode() if body is not None else b""
    with urllib.request.urlopen(urllib.request.Request(url, data, method="POST"), timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def size(look: Look) -> int:
    return look.rss_bytes


def in_mb(look: Look) -> str:
    return f"{look.rss_bytes / MEGABYTE:.1f} MB"


def cycle(child: Child, name: str) -> Look:
    """Load, use and unload; returns what the process was while the model was there."""
    post(child, f"repository/models/{name}/load")
    outputs = post(child, f"models/{name}/infer", BODY)["outputs"]
    assert outputs[0]["data"] == [3, 4] or name == "small"
    there = Look.at(child.processes, 0)
    post(child, f"repository/models/{name}/unload")
    return there


def at_rest(child: Child) -> Look:
    """The process once nothing is on its way out of it any more."""
    look = Look.at(child.processes, 0)
    for _ in range(40):
        time.sleep(0.5)
        before, look = look, Look.at(child.processes, 0)
        if abs(look.rss_bytes - before.rss_bytes) < MEGABYTE / 4 and look.threads == before.threads:
            break
    return look


def test_the_memory_of_a_model_is_given_back_each_time_it_is_unloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(heavy(MODEL_MB), tmp_path / "net" / "1" / "model.onnx")
    write_model(tmp_path, "small")
    with serve("--model-repository", tmp_path, "--model-control-mode=explicit") as child:
        child.ready()
        for _ in range(3):  # what the runtime itself needs stays
            cycle(child, "small")
        fresh = at_rest(child)
        there = [cycle(child, "net") for _ in range(CYCLES)]
        after = at_rest(child)
        assert child.stop() == 0
    kept = (after.rss_bytes - fresh.rss_bytes) / (MODEL_MB * MEGABYTE)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{CYCLES} cycles of {MODEL_MB} MB: resident at first {in_mb(fresh)}, "
            f"with the model {in_mb(min(there, key=size))} to {in_mb(max(there, key=size))}, at last "
            f"{in_mb(after)} ({kept:+.1%} of the model); threads {fresh.threads} and {after.threads}, "
            f"descriptors {fresh.descriptors} and {after.descriptors}\n"
        )
    assert min(look.rss_bytes for look in there) > fresh.rss_bytes + 190 * MEGABYTE
    assert kept < KEPT
    assert abs(after.threads - fresh.threads) <= 4
    assert abs(after.descriptors - fresh.descriptors) <= 1


def test_real_weights_stay_under_the_limit(tmp_path: Path) -> None:
    for name in "abc":
        save(heavy(60), tmp_path / name / "1" / "model.onnx")
    limit = f"--model-memory-limit={160 << 20}"
    with serve("--model-repository", tmp_path, "--model-control-mode=lazy", limit) as child:
        child.ready()
        held = []
        for name in "abcabcab":
            assert post(child, f"models/{name}/infer", BODY)["outputs"][0]["data"] == [3, 4]
            held.append(at_rest(child).rss_bytes)
            states = [model.get("state") for model in post(child, "repository/index")]
            assert states.count("READY") <= 2
        assert child.stop() == 0
    # two models are there all the time from the second on, and never the memory of a third
    assert max(held[1:]) - min(held[1:]) < 40 * MEGABYTE, held
