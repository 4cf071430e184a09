"""Iterates the responses of decoupled models in the way that its input names, and adds up what they hold."""

import asyncio
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        how = request.inputs()[0].as_numpy()[0].decode()
        text = str(await getattr(self, how)()).encode()
        return pb_utils.InferenceResponse([pb_utils.Tensor("said", np.array([text], dtype=np.object_))])

    async def four(self):
        async def one(index):
            responses = await asked("meets", 1, index).async_exec(decoupled=True)
            return [value(response) for response in responses]

        return await asyncio.gather(*map(one, range(4)))

    async def beside(self):
        """Something else goes on while the second responses are waited for."""
        first = asyncio.Event()

        async def one(index):
            values = []
            async for response in await asked("meets", 2, index).async_exec(decoupled=True):
                values.append(value(response))
                first.set()
            return values

        async def go():
            await first.wait()
            await asyncio.sleep(0.01)
            (Path(pb_utils.get_model_dir()).parents[1] / "meets" / "1" / "2" / "go").touch()

        *values, _ = await asyncio.gather(*map(one, range(4)), go())
        return values

    async def again(self):
        responses = asked("flood", 3, 1).exec(decoupled=True)
        first = value(next(responses))
        rest = [value(response) for response in responses]
        whole = [[value(response) for response in responses] for _ in range(2)]
        for response in responses:
            if value(response) == 1:
                break
        return first, rest, whole, [value(response) for response in responses], next(responses, "end")

    async def again_large(self):
        responses = asked("flood", 20, 250_000).exec(decoupled=True)
        count = len(list(responses))
        try:
            return count, len(list(responses))
        except pb_utils.TritonModelException as error:
            return count, str(error)

    async def cancelled(self):
        calls = [asked("flood", 5000, 1).async_exec(decoupled=True) for _ in range(3)]
        for call in calls:
            call.cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        return [type(each).__name__ for each in done]


def asked(model, *values):
    x = pb_utils.Tensor("x", np.array(values, np.float32))
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["y"], inputs=[x])


def value(response):
    assert not response.has_error(), response.error().message()
    outputs = response.output_tensors()
    return float(outputs[0].as_numpy()[-1]) if outputs else None
