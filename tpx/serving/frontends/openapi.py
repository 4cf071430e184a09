"""The OpenAPI document of the HTTP API, built from its routes and `schema/http.yaml`, and its HTML page."""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from math import prod

import orjson

from tpx import __version__
from tpx.protocol.http1.request import JSON_TYPE, HttpRequest
from tpx.protocol.json_values import NOT_IN_JSON, JsonObject, JsonValue
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.http_verbs import Route, answer_when_done, paths_of, route
from tpx.serving.frontends.openai import takes_messages
from tpx.serving.frontends.page import build_page
from tpx.serving.offload import Coalesced, in_steps
from tpx.serving.served import Served

_OPENAPI = "3.1.0"
_PARAMETER = re.compile(r"\{(\w+)\}")


def document(routes: Iterable[Route], models: Sequence[str]) -> JsonObject:
    """Build the document; `models` are examples for the parameter {model}."""
    words = description()
    operations = described()
    paths: dict[str, JsonObject] = {}
    for each in routes:
        for path in paths_of(each.template):
            item = paths.setdefault(path, {})
            for verb in each.verbs:
                key = verb.decode(), path
                anonymous = re.sub(r"\W+", "_", " ".join(key).lower())
                operation = operations.get(key, {"operationId": anonymous, "tag": each.category})
                item[verb.decode().lower()] = _build_operation(path, operation)
    parameters = {
        name: {"name": name, "in": "path", "required": True, **more}
        for name, more in words["parameters"].items()
    }
    # the order of `http.yaml`
    order = {path: at for at, path in enumerate(dict.fromkeys(path for _, path in operations))}
    if models:
        parameters["model"]["examples"] = {name: {"value": name} for name in models}
    return {
        "openapi": _OPENAPI,
        "info": {**words["info"], "version": __version__},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in words["tags"].items()],
        "paths": {path: paths[path] for path in sorted(paths, key=lambda p: order.get(p, len(order)))},
        "components": {
            "schemas": words["schemas"],
            "parameters": parameters,
            "responses": {
                str(status): _build_error(text)
                for status, text in {**words["errors"], **words["more_errors"]}.items()
            },
        },
    }


@cache
def description() -> JsonValue:
    """Load `http.yaml`."""
    from importlib import resources  # late, like the rest of the page: few servers are asked for it

    import yaml

    text = resources.files("tpx.protocol").joinpath("schema/http.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


@cache
def described() -> dict[tuple[str, str], JsonObject]:
    """Return the operations of `http.yaml` by method and path; each path variant has its own operationId."""
    out = {}
    for key, operation in description()["operations"].items():
        method, _, template = key.partition(" ")
        variants = paths_of(template)
        always = set.intersection(*(set(_PARAMETER.findall(path)) for path in variants))
        for path in variants:
            more = [name for name in _PARAMETER.findall(path) if name not in always]
            name = "_".join([operation["operationId"], *more])
            out[method, path] = {**operation, "operationId": name}
    return out


def _build_operation(path: str, told: JsonObject) -> JsonObject:
    operation: JsonObject = {"operationId": told["operationId"], "tags": [told["tag"]]}
    operation |= {key: told[key] for key in ("summary", "description") if key in told}
    parameters: list[JsonValue] = [
        {"$ref": f"#/components/parameters/{name}"} for name in _PARAMETER.findall(path)
    ]
    parameters += [
        {"name": name, "in": "header", **header} for name, header in told.get("headers", {}).items()
    ]
    if parameters:
        operation["parameters"] = parameters
    if "body" in told:
        operation["requestBody"] = {
            "required": not told.get("optional_body", False),
            "content": {kind: {"schema": _make_ref(schema)} for kind, schema in told["body"].items()},
        }
    words = description()
    statuses = sorted({*words["errors"], *told.get("errors", ())})
    responses: JsonObject = {str(s): {"$ref": f"#/components/responses/{s}"} for s in statuses}
    if "error_content" in told:
        texts = words["errors"] | words["more_errors"]
        responses = {str(s): _build_error(texts[s], told["error_content"]) for s in statuses}
    if "result" in told:
        content = {"application/json": {"schema": _make_ref(told["result"])}}
        responses["200"] = {"description": "the answer", "content": content}
    responses |= {str(status): response for status, response in told.get("responses", {}).items()}
    operation["responses"] = dict(sorted(responses.items()))
    return operation


def _build_error(text: str, other_content: str = "") -> JsonObject:
    content: JsonObject = {"application/json": {"schema": _make_ref("Error")}}
    if other_content:
        content[other_content] = {"schema": {"type": "string"}}
    return {"description": text, "content": content}


def _make_ref(schema: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{schema}"}


_MOST_EXAMPLES = 100
_LARGE_ELEMENTS = 10_000
"""Maximum elements of an input for its model to come first among the examples."""

_Made = tuple[bytes, bytes]
"""Headers and body."""


class HttpDocumentation:
    """Serves /v2/openapi.json and /v2/docs, covering all routes at the time of the request."""

    def __init__(self, plane: DataPlane, all_routes: Callable[[], Iterable[Route]]) -> None:
        self._plane = plane
        self._all_routes = all_routes
        self._json = Coalesced(
            partial(self._make_form, lambda document, _: (JSON_TYPE, orjson.dumps(document)))
        )
        self._html = Coalesced(partial(self._make_form, _render_page))

    def routes(self) -> list[Route]:
        return [
            route("/v2/openapi.json", "metadata", GET=partial(self._answer_form, self._json)),
            route("/v2/docs[/]", "metadata", GET=partial(self._answer_form, self._html)),
        ]

    def _answer_form(self, form: Coalesced[_Made], request: HttpRequest, _: re.Match[str]) -> None:
        async def work() -> None:
            headers, body = await form.get()
            request.respond(200, headers, (body,))

        self._plane.tasks.start(answer_when_done(request, work()))

    async def _make_form(self, form: Callable[[JsonObject, Sequence[str]], _Made]) -> _Made:
        """Build a representation of the document, in another thread because it takes long."""
        routes = list(self._all_routes())
        ranked = sorted(await in_steps(map(_rank_model, self._plane.served())))
        models = list(dict.fromkeys(name for _, name in ranked))[:_MOST_EXAMPLES]
        chats = list(
            dict.fromkeys(model.model_id.name for model in self._plane.served() if takes_messages(model))
        )
        return await asyncio.to_thread(lambda: form(document(routes, models), chats))


def _rank_model(model: Served) -> tuple[bool, str]:
    """Return the sort key of a model as an example; those that need one plain request come first."""
    awkward = (
        model.config.HasField("sequence_batching")
        or model.config.model_transaction_policy.decoupled
        or any(
            prod(map(abs, tensor.dims)) > _LARGE_ELEMENTS or tensor.datatype in NOT_IN_JSON
            for tensor in (*model.signature.inputs.values(), *model.signature.outputs.values())
        )
    )
    return awkward, model.model_id.name


def _render_page(document: JsonObject, chats: Sequence[str]) -> _Made:
    from tpx.serving.frontends.api_page import page_view

    page = page_view(document)
    return build_page("api_docs", title=page.title, page=page, chats=chats)
