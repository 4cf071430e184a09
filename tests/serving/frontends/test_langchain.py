"""LangChain as a client of OpenAI's API; `make test-frameworks` installs it."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langchain_openai import ChatOpenAI

from tests.serving.backends.llamacpp.models import write_tiny
from tests.serving.live import Live, serving


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    write_tiny(repository, "tiny", threads=1)
    with serving(repository) as running:
        yield running


def test_it_chats_streams_and_calls_tools(live: Live) -> None:
    url = f"http://127.0.0.1:{live.http_port}/v1"
    with httpx.Client() as connections:
        chat = ChatOpenAI(
            model="tiny", base_url=url, api_key="none", temperature=0, max_tokens=8, http_client=connections
        )
        whole = chat.invoke("And it came to pass")
        pieces = list(chat.stream("And it came to pass"))
        assert "".join(piece.content for piece in pieces) == whole.content != ""
        assert len(pieces) > 3
        assert whole.usage_metadata["output_tokens"] == 8

        schema: Any = {"title": "weigh", "description": "Weigh a thing", "type": "object"}
        schema |= {"properties": {"unit": {"type": "string", "enum": ["kg", "lb"]}}, "required": ["unit"]}
        tool = chat.bind_tools([schema], tool_choice="weigh").bind(max_tokens=80)
        [call] = tool.invoke("Weigh it").tool_calls
        assert call["name"] == "weigh"
        assert call["args"]["unit"] in ("kg", "lb")
