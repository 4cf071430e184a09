"""Requests that Claude Code 2.1 and Codex 0.171 sent, shortened, and a chat with empty lists."""

from typing import Any

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FUNCTION = {"type": "function", "name": "exec_command", "strict": False, "parameters": {"type": "object"}}


def script(most: int | None) -> dict[str, Any]:
    """The schema of a tool of Claude Code."""
    bound = {} if most is None else {"maxLength": most}
    return {
        "type": "object",
        "properties": {"script": {"type": "string", **bound}, "maxLength": {"enum": [1]}},
    }


CLAUDE_CODE: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": "Available agent types"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "t", "name": "Workflow", "input": {"script": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": "no"}],
        },
    ],
    "system": [{"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "Workflow", "description": "d", "input_schema": script(524_288)}],
    "metadata": {"user_id": "u"},
    "max_tokens": 32_000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}
CODEX: dict[str, Any] = {
    "model": "m",
    "input": [
        {
            "type": "message",
            "id": "i",
            "role": "developer",
            "content": [{"type": "input_text", "text": "You are"}],
        },
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": None},
        {"type": "function_call", "name": "exec_command", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
    ],
    "tools": [
        FUNCTION,
        {"type": "namespace", "name": "multi_agent_v1", "tools": []},
        {"type": "web_search", "external_web_access": False},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"turn_id": "t"},
}
LEFT_EMPTY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ],
    "stop": [],
    "tools": [],
    "tool_choice": "auto",
    "prompt_cache_key": "k",
    "max_completion_tokens": 5,
}
