"""An ensemble whose answers are kept: they are forgotten when a model changes that it is made of."""

from pathlib import Path

import numpy as np

from tests.serving.live import Live, floats, serving
from tests.serving.onnx_files import doubling, identity, save, write_model

ENSEMBLE = """
platform: "ensemble" max_batch_size: 4 response_cache { enable: true }
input [{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] }]
ensemble_scheduling {
  step [{ model_name: "part" model_version: -1
          input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }]
}
"""


def ask(live: Live) -> list[float]:
    answer = live.infer_binary("whole", {"x": floats([1, 2])})
    values: list[float] = np.frombuffer(answer.tail, np.float32).tolist()
    return values


def executions(live: Live, model: str) -> int:
    count: int = live.get(f"/v2/models/{model}/stats").json["model_stats"][0]["execution_count"]
    return count


def test_answers_of_an_ensemble_are_those_of_the_models_that_serve_now(tmp_path: Path) -> None:
    part = write_model(tmp_path, "part", identity("FP32", "batch", 2), "max_batch_size: 4")
    (tmp_path / "whole" / "1").mkdir(parents=True)
    (tmp_path / "whole" / "config.pbtxt").write_text(ENSEMBLE, encoding="utf-8")
    cache = ("local,size=1048576",)
    with serving(tmp_path, cache_config=cache, model_control_mode="explicit", load_model=("*",)) as live:
        assert [ask(live), ask(live)] == [[1, 2], [1, 2]]
        assert executions(live, "part") == 1
        save(doubling("batch", 2), part / "1" / "model.onnx")
        assert live.http("POST", "/v2/repository/models/part/load").status == 200
        assert [ask(live), ask(live)] == [[2, 4], [2, 4]]
        assert executions(live, "part") == 1
