import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.gather(*map(self.stream, requests))

    async def stream(self, request):
        sender = request.get_response_sender()
        count = int(request.inputs()[0].as_numpy()[0])
        for index in range(count):
            await asyncio.sleep(0.001)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([index], np.float32))]))
        if count > 5:
            raise ValueError("too many")
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
