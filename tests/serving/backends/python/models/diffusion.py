"""A pipeline like that of Stable Diffusion: tokenizer, text encoder, a loop over the denoiser with guidance, and
the decoder at its end, each another model; the two prompts are encoded at the same time."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.guidance_scale = 2.0
        self.latent_shape = (1, 4, 8, 8)

    async def execute(self, requests):
        responses = []
        for request in requests:
            try:
                responses.append(await self.generate(request))
            except pb_utils.TritonModelException as error:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
        return responses

    async def generate(self, request):
        prompt, negative = (self.text(request, name) for name in ("prompt", "negative_prompt"))
        steps = int(pb_utils.get_input_tensor_by_name(request, "steps").as_numpy()[0])
        seed = int(pb_utils.get_input_tensor_by_name(request, "seed").as_numpy()[0])
        embeddings = await asyncio.gather(self.encode(prompt), self.encode(negative))
        context = np.concatenate([embeddings[1], embeddings[0]])
        latents = np.random.RandomState(seed).randn(*self.latent_shape).astype(np.float32)
        for step in range(steps, 0, -1):
            noise = await self.ask(
                "unet",
                "noise",
                latent=np.concatenate([latents] * 2),
                timestep=np.full((2, 1), step, np.float32),
                context=context,
            )
            without, with_text = np.split(noise, 2)
            noise = without + self.guidance_scale * (with_text - without)
            latents = (latents - noise / steps).astype(np.float32)
        image = await self.ask("vae", "image", latent=latents)
        image = np.clip((image + 1) * 127.5, 0, 255).round().astype(np.uint8)
        return pb_utils.InferenceResponse([pb_utils.Tensor("image", image.transpose(0, 2, 3, 1)[0])])

    def text(self, request, name):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return b"" if tensor is None else tensor.as_numpy().reshape(-1)[0]

    async def encode(self, prompt):
        ids = await self.ask("tokenizer", "input_ids", prompt=np.array([[prompt]], np.object_))
        return await self.ask("text_encoder", "embedding", input_ids=ids)

    async def ask(self, model_name, output, **inputs):
        response = await pb_utils.InferenceRequest(
            model_name=model_name,
            requested_output_names=[output],
            inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
        ).async_exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return pb_utils.get_output_tensor_by_name(response, output).as_numpy()
