"""HTML page of the OpenAPI document, from which requests can be sent."""

import json
from collections import Counter
from dataclasses import dataclass

from tpx.protocol.json_values import JsonObject, JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterView:
    """A request parameter outside the body."""

    name: str
    place: str
    required: bool
    description: str
    choices: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseView:
    """One response status of an operation."""

    status: str
    description: str
    schema: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationView:
    """One operation with the variants of its path."""

    key: str
    method: str
    paths: list[str]
    summary: str
    description: str
    parameters: list[ParameterView]
    body_schema: str
    body_example: str
    responses: list[ResponseView]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """Operations of one category."""

    name: str
    description: str
    operations: list[OperationView]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldView:
    """One member of an object; `schema` is the schema that its type links to."""

    name: str
    type: str
    schema: str
    required: bool
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaView:
    """One schema: its members, or the type it is an alias for."""

    name: str
    type: str
    schema: str
    description: str
    fields: list[FieldView]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """Everything the template lays out."""

    title: str
    version: str
    description: str
    always: list[ResponseView]
    """Responses common to all operations, listed once."""
    groups: list[GroupView]
    schemas: list[SchemaView]
    models: list[str]


def page_view(document: JsonObject) -> PageView:
    """Return the contents of the page, in display order."""
    components = document["components"]
    always = _find_common_responses(document)
    groups = [
        GroupView(
            name=tag["name"],
            description=tag["description"],
            operations=_build_operations(document, tag["name"], always),
        )
        for tag in document["tags"]
    ]
    return PageView(
        title=document["info"]["title"],
        version=document["info"]["version"],
        description=document["info"]["description"],
        always=[
            _build_response(status, _resolve_reference(document, response))
            for status, response in always.items()
        ],
        groups=[group for group in groups if group.operations],
        schemas=[_build_schema(name, schema) for name, schema in components["schemas"].items()],
        models=list(components["parameters"]["model"].get("examples", ())),
    )


def _find_common_responses(document: JsonObject) -> JsonObject:
    """Return the responses that most operations refer to, by status."""
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    counts = Counter(
        (status, response["$ref"])
        for operation in operations
        for status, response in operation["responses"].items()
        if "$ref" in response
    )
    most = 0.8 * len(operations)
    return {status: {"$ref": ref} for (status, ref), count in sorted(counts.items()) if count > most}


def _build_operations(document: JsonObject, tag: str, always: JsonObject) -> list[OperationView]:
    """Return the operations of a tag, merging path variants, whose operationIds share a prefix."""
    variants: dict[str, list[tuple[str, str, JsonObject]]] = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if operation["tags"] == [tag]:
                key = operation["operationId"].partition("_")[0]
                variants.setdefault(key, []).append((path, method, operation))
    return [_build_operation(document, key, found, always) for key, found in variants.items()]


def _build_operation(
    document: JsonObject, key: str, variants: list[tuple[str, str, JsonObject]], always: JsonObject
) -> OperationView:
    variants = sorted(variants, key=lambda variant: len(variant[0]))
    operation = variants[0][2]
    parameters = {
        parameter["name"]: parameter
        for _, _, variant in variants
        for parameter in (_resolve_reference(document, given) for given in variant.get("parameters", ()))
    }
    media: JsonObject = next(iter(operation.get("requestBody", {}).get("content", {}).values()), {})
    body = media.get("schema", {})
    return OperationView(
        key=key,
        method=variants[0][1].upper(),
        paths=[path for path, _, _ in variants],
        summary=operation.get("summary", ""),
        description=operation.get("description", ""),
        parameters=[
            ParameterView(
                name=name,
                place=parameter["in"],
                required=all(f"{{{name}}}" in path for path, _, _ in variants),
                description=parameter.get("description", ""),
                choices=list(parameter.get("examples", parameter["schema"].get("enum", ()))),
            )
            for name, parameter in sorted(parameters.items(), key=lambda item: item[1]["in"] != "path")
        ],
        body_schema=_find_schema_name(body),
        body_example=_render_example(document, body),
        responses=[
            _build_response(status, _resolve_reference(document, response))
            for status, response in operation["responses"].items()
            if always.get(status) != response
        ],
    )


def _build_response(status: str, response: JsonObject) -> ResponseView:
    contents = response.get("content", {}).values()
    schemas = [_find_schema_name(media.get("schema", {})) for media in contents]
    return ResponseView(
        status=status,
        description=response["description"],
        schema=next(filter(None, schemas), ""),
    )


def _resolve_reference(document: JsonObject, value: JsonObject) -> JsonObject:
    """Resolve a reference within the document."""
    while "$ref" in value:
        found: JsonValue = document
        for step in value["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        value = found
    return value


def _find_schema_name(schema: JsonObject) -> str:
    """Return the name of the schema referred to, directly or as the items of an array."""
    name: str = schema.get("$ref", schema.get("items", {}).get("$ref", ""))
    return name.rpartition("/")[2]


def _render_example(document: JsonObject, body: JsonObject) -> str:
    if not body:
        return ""
    examples = _resolve_reference(document, body).get("examples")
    return json.dumps(examples[0], indent=2) if examples else "{}"


def _build_schema(name: str, schema: JsonObject) -> SchemaView:
    required = schema.get("required", ())
    members = {**schema.get("properties", {}), **schema.get("patternProperties", {})}
    if isinstance(schema.get("additionalProperties"), dict):
        members["any other"] = schema["additionalProperties"]
    return SchemaView(
        name=name,
        type=_describe_type(schema),
        schema=_find_schema_name(schema),
        description=schema.get("description", ""),
        fields=[
            FieldView(
                name=member,
                type=_describe_type(told),
                schema=_find_schema_name(told),
                required=member in required,
                description=told.get("description", ""),
            )
            for member, told in members.items()
        ],
    )


def _describe_type(schema: JsonObject) -> str:
    """Describe the type of a schema in a few words."""
    if "$ref" in schema:
        return _find_schema_name(schema)
    if "enum" in schema:
        return " | ".join("null" if value is None else str(value) for value in schema["enum"])
    kinds = schema.get("type", "any")
    text = kinds if isinstance(kinds, str) else " or ".join(kinds)
    if "items" in schema:
        text = text.replace("array", f"array of {_describe_type(schema['items'])}")
    limits = [
        f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema
    ]
    if "pattern" in schema:
        limits.append(schema["pattern"])
    return " ".join([text, *limits])
