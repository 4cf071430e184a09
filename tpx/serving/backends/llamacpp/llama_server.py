"""llama.cpp's server as a library."""

import contextlib
import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

import xllamacpp

from tpx.protocol.json_values import JsonObject
from tpx.serving.backends.llamacpp.engine_socket import EngineSocket

_SILENT, _ERRORS = -1, 1
"""Verbosities. Errors of requests are answered, so that the log need not have them."""
Take = Callable[[bytes], bool]
"""Takes a chunk; returns True to cancel the request."""


class LlamaServer(Protocol):
    """Methods of the server. Requests and answers are JSON; a call blocks until its request has ended."""

    def handle_chat_completions(self, body: bytes, take: Take) -> None: ...
    def handle_completions(self, body: bytes, take: Take) -> None: ...
    def handle_embeddings(self, body: bytes) -> bytes: ...
    def handle_rerank(self, body: bytes) -> bytes: ...


def start_server(settings: JsonObject, name: str) -> tuple[LlamaServer, EngineSocket]:
    """Load the model; return the server, and the way to its other endpoints.

    llama.cpp's library listens for HTTP in any case: here on a Unix socket, whose file is removed at once and
    which requires a key that nobody knows.
    """
    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.model_alias = {name}
    params.n_ctx = settings["n_ctx"]
    params.n_parallel = settings["n_parallel"]
    params.kv_unified = False
    params.n_batch = settings["n_batch"]
    params.n_ubatch = min(512, settings["n_batch"])
    for processors in (params.cpuparams, params.cpuparams_batch):
        processors.n_threads = settings["threads"]
        processors.poll = 0  # spinning threads collapse on busy cores
    params.n_gpu_layers = settings["n_gpu_layers"]
    params.cache_ram_mib = settings["cache_ram_mib"]
    params.fit_params = False
    kind = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{settings['kv_cache_type'].upper()}")
    params.cache_type_k = params.cache_type_v = kind
    params.embedding = settings["embeddings"]
    if settings["pooling"]:
        params.pooling_type = getattr(
            xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{settings['pooling'].upper()}"
        )
    if settings["mmproj"]:
        params.mmproj.path = settings["mmproj"]
        params.mmproj_use_gpu = settings["n_gpu_layers"] > 0
    if settings["chat_template"]:
        params.chat_template = settings["chat_template"]
    params.verbosity = _SILENT
    params.ui = params.endpoint_slots = params.endpoint_metrics = False
    params.n_threads_http = settings["n_parallel"] + 1  # one answers what takes no sequence
    key = secrets.token_hex(32)
    params.api_keys = [key]
    with tempfile.TemporaryDirectory(prefix="tpx-engine-") as directory:
        path = str(Path(directory) / "http.sock")
        params.hostnames = [path]
        try:
            server = xllamacpp.Server(params)
        except RuntimeError as exc:
            Path(path).unlink(missing_ok=True)
            why = _explain(params, Path(directory) / "log")
            raise RuntimeError(f"llama.cpp cannot load '{settings['path']}': {why or exc}") from None
        return cast("LlamaServer", server), EngineSocket(os.open(path, os.O_PATH), key)


def _explain(params: xllamacpp.CommonParams, log: Path) -> str:
    """Return why loading fails: load again, with the log of errors, which the exception does not have."""
    params.verbosity = _ERRORS
    standard_error = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            with contextlib.suppress(RuntimeError):
                xllamacpp.Server(params)
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.partition(" E ")[2].strip() for line in lines if " E " in line), "")
