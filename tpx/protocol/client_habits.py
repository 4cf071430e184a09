"""Leave out what clients add to requests of OpenAI's and Anthropic's APIs that changes no answer, before the
requests are checked: so clients work unchanged.

An empty list of tools or stops is none. Members of an assistant's message that only answers have come back
with the next request. A hint about caches, billing or abuse has no effect by definition. Tools that a client
adds to each request for its vendor's service, such as a search of the web, are not offered to the model,
which so calls none of them. Upper bounds that would make a grammar large are left out of the schema of a
tool, whose caller checks its arguments anyway.
"""

from collections.abc import Iterator
from typing import cast

from tpx.protocol.engine_endpoints import FIELDS
from tpx.protocol.json_checks import MAX_SCHEMA_COUNT
from tpx.protocol.json_values import JsonObject

_HINTS = frozenset(
    {
        "client_metadata",
        "context_management",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
    }
)
_ECHOED = frozenset({"metadata", "user"})
"""Hints that an engine may repeat in its response, where it makes that as a whole."""
_NOTHING: JsonObject = {
    "best_of": (1,),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "stop": ([],),
    "stop_sequences": ([],),
    "store": (False,),
    "tools": ([],),
}
"""Values that change nothing."""
_OF_ANSWERS = ("annotations", "refusal")
_OF_SERVICES = ("custom", "local_shell", "namespace", "web_search")
"""Types of tools in requests for responses that are no functions: those of Codex."""
_UPPER_BOUNDS = ("maxItems", "maxLength")


def plain(value: JsonObject, endpoint: str) -> JsonObject:
    """Return a request without what changes nothing, and without nulls; values of unexpected types are for
    the checks.
    """
    hints = _HINTS if endpoint in FIELDS else _HINTS | _ECHOED
    fields = {
        name: given
        for name, given in value.items()
        if given is not None and name not in hints and not _changes_nothing(name, given)
    }
    if endpoint == "chat/completions" and isinstance(fields.get("messages"), list):
        fields["messages"] = [_plain_message(message) for message in fields["messages"]]
    if isinstance(fields.get("tools"), list):
        tools = [tool for tool in fields["tools"] if endpoint != "responses" or not _is_of_a_service(tool)]
        fields["tools"] = [_plain_tool(tool) for tool in tools]
        if not tools:
            del fields["tools"]
    if "tools" not in fields and fields.get("tool_choice") in ("auto", "none"):
        del fields["tool_choice"]
    if endpoint == "chat/completions" and fields.get("top_logprobs") == 0 and not fields.get("logprobs"):
        del fields["top_logprobs"]
    return fields


def _changes_nothing(name: str, given: object) -> bool:
    return any(given == each and type(given) is type(each) for each in _NOTHING.get(name, ()))


def _plain_message(message: object) -> object:
    if not isinstance(message, dict):
        return message
    rest = dict(message)
    if rest.get("role") == "assistant":
        for name in _OF_ANSWERS:
            rest.pop(name, None)
    if rest.get("tool_calls") == []:
        del rest["tool_calls"]
    if isinstance(rest.get("content"), list):
        rest["content"] = [_plain_part(part) for part in rest["content"]]
    return rest


def _plain_part(part: object) -> object:
    if not isinstance(part, dict):
        return part
    return {name: value for name, value in part.items() if name != "cache_control"}


def _is_of_a_service(tool: object) -> bool:
    return isinstance(tool, dict) and tool.get("type") in _OF_SERVICES


def _plain_tool(tool: object) -> object:
    """Return a tool without upper bounds that are too large for a grammar."""
    for each in _objects_of(tool):
        for name in _UPPER_BOUNDS:
            bound = each.get(name)
            if isinstance(bound, int | float) and bound > MAX_SCHEMA_COUNT:
                del each[name]
    return tool


def _objects_of(value: object) -> Iterator[JsonObject]:
    """Yield all objects of a JSON value, which may be nested deeply."""
    level = [value]
    while level:
        each = level.pop()
        if isinstance(each, dict):
            yield cast("JsonObject", each)
            level += each.values()
        elif isinstance(each, list):
            level += each
