"""The model repository over HTTP: what there is."""

import re
from dataclasses import asdict

from tpx.errors import InvalidRequest, NotReady, Unsupported
from tpx.protocol.http1.server import HttpRequest
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.http_answers import answer_json
from tpx.serving.frontends.http_routes import Route, json_object, route

_REPOSITORY = r"/v2/repository(?:/(?P<repository>[^/]+))?"


class HttpControl:
    """Index, load and unload."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def routes(self) -> list[Route]:
        return [
            route(_REPOSITORY + "/index", "model-repository", POST=self._index),
            route(
                _REPOSITORY + "/models/(?P<model>[^/]+)/(?:load|unload)",
                "model-repository",
                POST=self._no_model_control,
            ),
        ]

    def _index(self, request: HttpRequest, match: re.Match[str]) -> None:
        _refuse_repository(match)
        ready = json_object(request).get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidRequest("Invalid value for 'ready': expected a boolean")
        entries = [asdict(entry) for entry in self._plane.index(ready_only=ready)]
        answer_json(request, [{k: v for k, v in entry.items() if v} for entry in entries])

    def _no_model_control(self, request: HttpRequest, match: re.Match[str]) -> None:  # noqa: ARG002
        _refuse_repository(match)
        raise NotReady("explicit model load / unload is not allowed if polling is enabled")


def _refuse_repository(match: re.Match[str]) -> None:
    if match["repository"]:
        raise Unsupported("'repository_name' specification is not supported")
