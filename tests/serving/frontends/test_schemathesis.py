"""Requests made from the OpenAPI document by schemathesis, allowed ones and forbidden ones: every answer must
be one that the document tells of."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CheckFunction
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks

from tests.serving import onnx_files
from tests.serving.live import Live, serving
from tests.serving.onnx_files import write_model
from tpx.serving.frontends.openapi import described

MODELS = ("ints", "words", "nobody")
DOCUMENTED_FAILURES = (501, 503)
EXAMPLES = 6

# Not among them: that every forbidden request is refused. As with Triton, unknown members are ignored.
CHECKS: list[CheckFunction] = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("schemathesis")
    write_models(repository)
    with serving(repository) as live:
        yield live
        assert live.get("/v2/health/ready").status == 200


def write_models(repository: Path) -> None:
    """Models whose answers are JSON whatever comes: no floats, and so no NaN."""
    write_model(repository, "ints", onnx_files.identity("INT64", "batch", "n"), "dynamic_batching { }")
    write_model(repository, "words", onnx_files.identity("BYTES", "batch", "n"), "max_batch_size: 8")


@pytest.fixture(scope="module")
def schema(server: Live) -> Any:
    """The document, with models that there are and one that there is not."""
    return loaded(server, narrow=False)


@pytest.fixture(scope="module")
def narrow(server: Live) -> Any:
    """The same, but tensors are such as the models may take: requests are computed, too."""
    return loaded(server, narrow=True)


def loaded(server: Live, *, narrow: bool) -> Any:
    told = server.get("/v2/openapi.json").json
    told["components"]["parameters"]["model"]["schema"] = {"enum": list(MODELS)}
    if narrow:
        _narrow(told)
    schema = schemathesis.openapi.from_dict(told)
    schema.config.update(base_url=f"http://127.0.0.1:{server.http_port}")
    return schema


def _narrow(told: Any) -> None:
    infer = told["paths"]["/v2/models/{model}/infer"]["post"]
    infer["parameters"] = [item for item in infer["parameters"] if "$ref" in item]
    del infer["requestBody"]["content"]["application/octet-stream"]
    schemas = told["components"]["schemas"]
    schemas["InferRequest"]["properties"]["inputs"] |= {"minItems": 1, "maxItems": 1}
    schemas["Input"] = {
        "type": "object",
        "required": ["name", "datatype", "shape", "data"],
        "additionalProperties": False,
        "properties": {
            "name": {"const": "x"},
            "datatype": {"const": "INT64"},
            "shape": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2},
            "data": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 4},
        },
    }
    schemas["RequestedOutput"]["properties"]["name"] = {"enum": ["y", "z"]}


def statuses(operation: Any, mode: GenerationMode) -> Counter[int]:
    """Send requests; every answer must be one that the document tells of."""
    seen: Counter[int] = Counter()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        response = case.call(timeout=10)
        assert response.status_code < 500 or response.status_code in DOCUMENTED_FAILURES, response.text
        case.validate_response(response, checks=CHECKS)
        seen[response.status_code] += 1

    ask()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), sorted(described()))
def test_allowed_requests_are_answered_as_the_document_says(schema: Any, method: str, path: str) -> None:
    assert statuses(schema[path][method], GenerationMode.POSITIVE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path"), sorted(key for key, told in described().items() if "body" in told)
)
def test_forbidden_requests_are_answered_as_the_document_says(schema: Any, method: str, path: str) -> None:
    assert statuses(schema[path][method], GenerationMode.NEGATIVE)


@pytest.mark.slow
def test_requests_that_a_model_may_take_are_computed_or_refused(narrow: Any) -> None:
    seen = statuses(narrow["/v2/models/{model}/infer"]["POST"], GenerationMode.POSITIVE)
    assert seen[200] >= 1
    assert seen[400] >= 1


def test_an_answer_that_is_not_in_the_document_is_found(server: Live) -> None:
    told = server.get("/v2/openapi.json").json
    del told["paths"]["/v2/models/{model}"]["get"]["responses"]["404"]
    schema = schemathesis.openapi.from_dict(told)
    schema.config.update(base_url=f"http://127.0.0.1:{server.http_port}")
    with pytest.raises(FailureGroup, match="Undocumented status code"):
        statuses(schema["/v2/models/{model}"]["GET"], GenerationMode.POSITIVE)
