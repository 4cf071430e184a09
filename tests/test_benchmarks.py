"""The models of the benchmarks, which run by themselves for too long to be tests."""

from pathlib import Path

import numpy as np
import onnxruntime as ort

from benchmarks.accumulators import STRATEGIES, write


def test_the_model_of_the_sequences_lies_where_the_server_reads_it_and_adds(tmp_path: Path) -> None:
    repository = write(tmp_path, "tpx")
    assert {model.name for model in repository.iterdir()} == set(STRATEGIES)
    for model in repository.iterdir():
        session = ort.InferenceSession(model / "1" / "model.onnx")
        inputs = {each.name: np.full((1, 1), 2, np.float32) for each in session.get_inputs()}
        inputs["CORRID"] = np.ones((1, 1), np.uint64)
        assert session.run(["OUTPUT"], inputs)[0].tolist() == [[4.0]]
