"""A server whose environment tells protobuf to do without its compiled half, as some packages do."""

from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from tests.e2e.child import serve
from tests.serving.onnx_files import write_model

pytestmark = pytest.mark.e2e


def test_a_server_on_pure_python_protobuf_answers_over_grpc(tmp_path: Path) -> None:
    write_model(tmp_path, "net")
    environment = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    with serve("--model-repository", tmp_path, env=environment) as child:
        address = f"127.0.0.1:{child.ready().port('GRPCInferenceService')}"
        with tritonclient.grpc.InferenceServerClient(address) as client:
            metadata = client.get_model_metadata("net", as_json=True)
            assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "2"]}]
            assert client.get_model_config("net", as_json=True)["config"]["backend"] == "onnxruntime"
            assert client.get_inference_statistics("net", as_json=True)["model_stats"][0]["name"] == "net"
            given = tritonclient.grpc.InferInput("x", [1, 2], "FP32")
            given.set_data_from_numpy(np.array([[1, 2]], dtype=np.float32))
            assert client.infer("net", [given]).as_numpy("y").tolist() == [[2, 4]]
        assert child.stop() == 0
        assert child.err == []
