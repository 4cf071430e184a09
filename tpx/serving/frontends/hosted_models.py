"""The models of SageMaker's multi-model endpoints, which load, list and unload them by paths of their own."""

import asyncio
import logging
import os
import re
from collections.abc import Callable, Coroutine
from pathlib import Path

import orjson

from tpx.errors import InvalidRequest
from tpx.protocol.http1.request import JSON_TYPE, HttpRequest
from tpx.protocol.json_values import JsonObject
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.hosted import HostedPaths
from tpx.serving.frontends.http_verbs import Route, answer_error, answer_when_done, route, short_json_object

log = logging.getLogger(__name__)

_TARGET = b"x-amzn-sagemaker-target-model"
_NOT_MODELS = ("/dev", "/proc", "/sys")
_UNLOAD_S = 350
"""The platform gives up after 360 s."""


class HostedModels:
    """Serves the paths below `HostedPaths.models`, except inference."""

    def __init__(self, plane: DataPlane, hosted: HostedPaths) -> None:
        self._plane = plane
        self._hosted = hosted
        self._urls: dict[str, str] = {}
        """Directories of the models that are loaded, by name."""
        self._loading: set[str] = set()

    def routes(self) -> list[Route]:
        path, later = self._hosted.models, self._defer_answer
        return [
            route(path + "[/]", "model-repository", GET=self._list, POST=later(self._load)),
            route(path + "/{model}", "model-repository", GET=self._show, DELETE=later(self._unload)),
        ]

    def _defer_answer(
        self, verb: Callable[[HttpRequest, re.Match[str]], Coroutine[object, object, None]]
    ) -> Callable[[HttpRequest, re.Match[str]], None]:
        def begin(request: HttpRequest, match: re.Match[str]) -> None:
            work = verb(request, match)
            self._plane.tasks.start(answer_when_done(request, work, self._hosted.fail))

        return begin

    def _list(self, request: HttpRequest, _: re.Match[str]) -> None:
        ready = {model.name for model in self._plane.served()}
        models = [self._describe(name) for name in self._urls if name in ready]
        request.respond(200, JSON_TYPE, (orjson.dumps({"models": models}),))

    def _show(self, request: HttpRequest, match: re.Match[str]) -> None:
        if match["model"] in self._urls:
            request.respond(200, JSON_TYPE, (orjson.dumps(self._describe(match["model"])),))
        else:
            _refuse(request, 404, f"model '{match['model']}' is not loaded")

    def _describe(self, name: str) -> JsonObject:
        return {"modelName": name, "modelUrl": self._urls[name]}

    async def _load(self, request: HttpRequest, _: re.Match[str]) -> None:
        body = short_json_object(request)
        name, url = body.get("model_name"), body.get("url")
        if not isinstance(name, str) or not isinstance(url, str) or not name or not url:
            raise InvalidRequest("a model is loaded by the strings 'model_name' and 'url', its directory")
        path = Path(os.path.abspath(url))  # noqa: ASYNC240, PTH100 (without a look at the disk)
        if any(path.is_relative_to(place) for place in _NOT_MODELS):
            raise InvalidRequest(f"'{url}' is in {', '.join(_NOT_MODELS)}, where no models are")
        if name in self._urls or name in self._loading:
            _refuse(request, 409, f"model '{name}' is loaded already, or being loaded: unload it first")
            return
        target = request.head.headers.get(_TARGET, b"").decode("latin-1")
        log.info("loading model '%s' from '%s'%s", name, url, f" for '{target}'" if target else "")
        self._loading.add(name)
        try:
            await self._plane.control.load_archive(path, name)
        finally:
            self._loading.discard(name)
        self._urls[name] = url
        request.respond(200, JSON_TYPE)

    async def _unload(self, request: HttpRequest, match: re.Match[str]) -> None:
        name = match["model"]
        url = self._urls.pop(name, None)  # at once: of two requests, one unloads
        if url is None:
            _refuse(request, 404, f"model '{name}' is not loaded")
            return
        unloading = asyncio.ensure_future(self._plane.control.unload_archive(name))
        await asyncio.wait([unloading], timeout=_UNLOAD_S)
        if unloading.done():
            if unloading.exception() is not None:
                self._urls[name] = url
            unloading.result()
        else:
            log.warning("model '%s' still has requests %d s after its unload", name, _UNLOAD_S)
        request.respond(200, JSON_TYPE)


def _refuse(request: HttpRequest, status: int, message: str) -> None:
    answer_error(request, InvalidRequest(message), status=status)
