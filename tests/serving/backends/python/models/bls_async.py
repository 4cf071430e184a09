"""Calls `double` many times at once, and adds the answers up."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        x = request.inputs()[0].as_numpy()
        calls = [self.call(x + index) for index in range(8)]
        total = sum(await asyncio.gather(*calls))
        streamed = await pb_utils.InferenceRequest(
            model_name="flood",
            requested_output_names=["y"],
            inputs=[pb_utils.Tensor("x", np.array([3, 1], np.float32))],
        ).async_exec(decoupled=True)
        extra = sum(r.output_tensors()[0].as_numpy() for r in streamed if r.output_tensors())
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", (total + extra).astype(np.float32))])

    async def call(self, x):
        request = pb_utils.InferenceRequest(
            model_name="double", requested_output_names=["y"], inputs=[pb_utils.Tensor("x", x)]
        )
        response = await request.async_exec()
        assert not response.has_error(), response.error().message()
        return response.output_tensors()[0].as_numpy()
