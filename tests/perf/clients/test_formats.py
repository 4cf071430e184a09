"""Which form tensors have over HTTP, where the user says nothing."""

import asyncio
import json
from collections.abc import Mapping

import pytest

from tests.perf.servers import Behaviour, http_server
from tpx.argv import from_argv
from tpx.perf.connecting import open_model
from tpx.perf.options import SessionSpec
from tpx.perf.run import run


def sent(behaviour: Behaviour, *words: str) -> tuple[Mapping[str, str], bytes, tuple[str, ...]]:
    """Headers and body of a request, and what the user is told."""

    async def scene() -> tuple[str, ...]:
        async with open_model(config) as connected:
            notices = connected.notices
        await run(config)
        return notices

    with http_server(behaviour) as url:
        config = from_argv(SessionSpec, ["-m", "net", "-u", url, "--request-count", "1", *words])
        notices = asyncio.run(scene())
    return *behaviour.seen[0], notices


def test_a_server_without_the_binary_extension_gets_json_and_the_user_is_told() -> None:
    headers, body, notices = sent(Behaviour(extensions=("statistics",)))
    assert headers["content-type"] == "application/json"
    (tensor,) = json.loads(body)["inputs"]
    assert len(tensor["data"]) == 4
    assert any("extension binary_tensor_data" in notice for notice in notices)


@pytest.mark.parametrize("extensions", [(), ("binary_tensor_data",)])
def test_bytes_are_sent_where_the_server_or_the_user_says_so(extensions: tuple[str, ...]) -> None:
    words = () if extensions else ("--input-tensor-format", "binary", "--output-tensor-format", "binary")
    headers, body, notices = sent(Behaviour(extensions=extensions), *words)
    assert len(body) - int(headers["inference-header-content-length"]) == 16
    assert not notices
