"""Health, metadata, configuration and statistics over HTTP."""

import re
from dataclasses import asdict

from tpx.errors import InvalidRequest, NotReady
from tpx.protocol import model_config
from tpx.protocol.http1.server import HttpRequest
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.http_answers import answer_json, answer_when_done
from tpx.serving.frontends.http_routes import MODEL, Route, of_model, route
from tpx.serving.served import Served


class HttpMetadata:
    """The verbs that only tell something."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def routes(self) -> list[Route]:
        return [
            route(r"/v2/?", "metadata", GET=self._server_metadata),
            route(r"/v2/health/live", "health", GET=self._live),
            route(r"/v2/health/ready", "health", GET=self._ready),
            route(r"/v2/models/stats", "statistics", GET=self._all_statistics),
            route(MODEL, "metadata", GET=self._model_metadata),
            route(MODEL + "/ready", "health", GET=self._model_ready),
            route(MODEL + "/config", "model-config", GET=self._model_config),
            route(MODEL + "/stats", "statistics", GET=self._statistics),
        ]

    def _server_metadata(self, request: HttpRequest, _: re.Match[str]) -> None:
        answer_json(request, asdict(self._plane.server_metadata()))

    def _live(self, request: HttpRequest, _: re.Match[str]) -> None:
        request.respond(200 if self._plane.live() else 400, b"")

    def _ready(self, request: HttpRequest, _: re.Match[str]) -> None:
        if self._plane.exiting:
            raise NotReady("Server exiting")
        if self._plane.has_opinions:
            self._plane.control.tasks.start(answer_when_done(request, self._ask_all(request)))
        else:
            request.respond(200 if self._plane.ready() else 400, b"")

    async def _ask_all(self, request: HttpRequest) -> None:
        request.respond(200 if await self._plane.says_ready() else 400, b"")

    def _model_metadata(self, request: HttpRequest, match: re.Match[str]) -> None:
        answer_json(request, asdict(self._plane.model_metadata(*of_model(match))))

    def _model_ready(self, request: HttpRequest, match: re.Match[str]) -> None:
        model = self._plane.has_readiness_hook(*of_model(match))
        if model is not None:
            self._plane.control.tasks.start(answer_when_done(request, self._ask(request, model)))
            return
        self._tell_ready(request, ready=self._plane.model_ready(*of_model(match)))

    async def _ask(self, request: HttpRequest, model: Served) -> None:
        self._tell_ready(request, ready=await model.says_ready())

    @staticmethod
    def _tell_ready(request: HttpRequest, *, ready: bool) -> None:
        if not ready:
            raise InvalidRequest("Model version not ready")
        request.respond(200, b"")

    def _model_config(self, request: HttpRequest, match: re.Match[str]) -> None:
        answer_json(request, model_config.to_json(self._plane.model_config(*of_model(match))))

    def _statistics(self, request: HttpRequest, match: re.Match[str]) -> None:
        answer_json(request, {"model_stats": self._plane.statistics(*of_model(match))})

    def _all_statistics(self, request: HttpRequest, _: re.Match[str]) -> None:
        answer_json(request, {"model_stats": self._plane.statistics("", "")})
