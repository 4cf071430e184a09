"""An ONNX model in MLServer; runs in MLServer's Python, not in ours."""

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxModel(MLModel):
    """One session, run on the event loop as MLServer's own runtimes do."""

    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.settings.parameters.extra["intra_op_thread_count"]
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            self.settings.parameters.uri, options, providers=["CPUExecutionProvider"]
        )
        self._outputs = [item.name for item in self._session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feed = {item.name: NumpyCodec.decode_input(item) for item in payload.inputs}
        arrays = self._session.run(self._outputs, feed)
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                NumpyCodec.encode_output(name, array)
                for name, array in zip(self._outputs, arrays, strict=True)
            ],
        )
