"""vLLM's application for OpenAI's API, without a port: templates, tools, schemas and sampling are vLLM's, and
of all its interfaces that one changes least.
"""

from argparse import Namespace
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import cast

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client_from_engine_args
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.models.protocol import LoRAModulePath
from vllm.utils.argparse_utils import FlexibleArgumentParser

from tpx.options import nearest
from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import ENDPOINTS
from tpx.serving.backends.vllm.asgi import Application
from tpx.serving.backends.vllm.texts import VllmClient

_NOWHERE = "none.invalid"
"""The only domain that vLLM may fetch media from unless `model.json` has others: URLs are refused earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningVllm:
    """An engine that has started."""

    application: Application
    client: VllmClient
    endpoints: frozenset[str]
    """Endpoints of OpenAI's API that the model has."""
    adapters: Mapping[str, object]
    """vLLM's LoRARequest of each name in `multi_lora.json`."""
    context: int
    """Tokens that its cache holds."""


@asynccontextmanager
async def started_vllm(arguments: JsonObject, name: str) -> AsyncIterator[RunningVllm]:
    """Start the engine with the arguments of `model.json`. Raises ValueError for an unknown one."""
    engine_args, options = _parse(arguments, name)
    async with build_async_engine_client_from_engine_args(engine_args) as client:
        tasks = await client.get_supported_tasks()
        application = build_app(options, tasks, client.model_config)
        await init_app_state(client, application.state, options, tasks)
        cache = client.vllm_config.cache_config
        paths = {getattr(route, "path", "") for route in application.routes}
        yield RunningVllm(
            application=cast("Application", application),
            client=client,
            endpoints=frozenset(each for each in ENDPOINTS if f"/v1/{each}" in paths),
            adapters=dict(application.state.openai_serving_models.lora_requests),
            context=max(1, (cache.num_gpu_blocks or 0) * cache.block_size),
        )


def _parse(arguments: JsonObject, name: str) -> tuple[AsyncEngineArgs, Namespace]:
    """Return the arguments of the engine, and those of vLLM's server. Raises ValueError."""
    options = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    of_engine = {field.name for field in fields(AsyncEngineArgs)}
    known = of_engine | vars(options).keys()
    for key in arguments:
        if key not in known:
            raise ValueError(f"vLLM has no argument '{key}'{nearest(key, known)}")
    chosen = {"allowed_media_domains": [_NOWHERE], **arguments, "served_model_name": [name]}
    engine_args = AsyncEngineArgs(**{key: value for key, value in chosen.items() if key in of_engine})
    for key in of_engine:
        setattr(options, key, getattr(engine_args, key))
    for key in chosen.keys() - of_engine:
        setattr(options, key, chosen[key])
    options.lora_modules = [LoRAModulePath(**each) for each in arguments.get("lora_modules", ())]
    options.enable_prompt_tokens_details = True
    options.disable_fastapi_docs = True
    return engine_args, options
