"""Which models may be computed on the event loop: those whose work the values of inputs do not decide."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.serving.counted_models import MODELS
from tests.serving.live import serving
from tests.serving.onnx_files import save, write_model
from tests.waiting import eventually
from tpx.serving.backends.onnxruntime.graph import work_depends_on_values


@pytest.mark.parametrize("name", MODELS)
def test_work_depends_on_values_where_they_say_how_much_there_is(tmp_path: Path, name: str) -> None:
    depends, model = MODELS[name]
    assert work_depends_on_values(save(model, tmp_path / "model.onnx")) is depends


@pytest.mark.parametrize("content", [b"ORTM" * 100, b"\x08\x08", b"\x3a\x7f"])
def test_nothing_is_known_of_other_formats(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.ort").write_bytes(content)
    assert work_depends_on_values(tmp_path / "model.ort")


def test_a_long_loop_does_not_hold_up_other_clients(tmp_path: Path) -> None:
    write_model(tmp_path, "loops", MODELS["as often as an input says"][1])
    with serving(tmp_path) as live, ThreadPoolExecutor(1) as pool:
        [model] = live.server.plane.served()
        for _ in range(50):  # so that the server knows the model as a short one
            assert live.infer_binary("loops", {"n": np.array([1])}).status == 200
        long = pool.submit(live.infer_binary, "loops", {"n": np.array([1_000_000])})
        eventually(lambda: model.in_flight == 1)
        assert live.get("/v2/health/live").status == 200
        assert not long.done()
        assert long.result().status == 200
