import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return list(await asyncio.gather(*map(self.answer, requests)))

    async def answer(self, request):
        x = request.inputs()[0].as_numpy()
        await asyncio.sleep(0.001)
        if x.size and x.reshape(-1)[0] < 0:
            raise ValueError("negative")
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 2)])

    async def is_ready(self):
        await asyncio.sleep(0)
        return True
