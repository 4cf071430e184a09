"""llama.cpp in Triton's python backend, as its vLLM backend does it: decoupled, a response for each token.

Copied as `model.py`; runs in Triton's Python and in that of tpx. Each request has a thread, because
llama.cpp's library answers in the thread that asks, and batches the sequences of all threads by itself.
"""

import json
import os
import threading
from pathlib import Path

import numpy as np
import triton_python_backend_utils as triton
import xllamacpp


class TritonPythonModel:
    """One engine for all requests."""

    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        streams = int(parameters["n_parallel"]["string_value"])
        params = xllamacpp.CommonParams()
        params.model.path = str(Path(args["model_repository"], args["model_version"], "model.gguf"))
        params.n_parallel = streams
        params.n_ctx = 512 * streams
        params.kv_unified = False
        for processors in (params.cpuparams, params.cpuparams_batch):
            processors.n_threads = 1
            processors.poll = 0
        params.cache_ram_mib = 0
        params.fit_params = False
        params.verbosity = -1
        params.ui = params.endpoint_slots = params.endpoint_metrics = False
        params.n_threads_http = 1
        params.hostnames = [f"/tmp/bench-{os.getpid()}.sock"]
        self.server = xllamacpp.Server(params)

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.generate, args=(request,), daemon=True).start()

    def generate(self, request):
        sender = request.get_response_sender()
        text = triton.get_input_tensor_by_name(request, "text_input").as_numpy().flat[0]
        sampling = triton.get_input_tensor_by_name(request, "sampling_parameters").as_numpy().flat[0]
        body = {**json.loads(sampling), "prompt": text.decode(), "stream": True}

        def take(chunk):
            choices = json.loads(chunk)["choices"] if chunk.startswith(b"{") else []
            if choices and choices[0]["text"]:
                output = triton.Tensor("text_output", np.array([choices[0]["text"].encode()], object))
                sender.send(triton.InferenceResponse([output]))
            return False

        self.server.handle_completions(json.dumps(body).encode(), take)
        sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
