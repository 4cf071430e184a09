"""Names of settings that differ between OpenAI's API with vLLM's additions, and llama.cpp."""

from tpx.protocol.json_values import JsonObject

_SEED = 2**31 - 1
"""llama.cpp's seeds have 32 bits, and the largest means a random one."""


def rename(fields: JsonObject, context: int) -> None:
    """Replace fields that llama.cpp has under other names or with other values; a sequence has at most
    `context` tokens.
    """
    if "repetition_penalty" in fields:
        fields |= {"repeat_penalty": fields.pop("repetition_penalty"), "repeat_last_n": context}
    if fields.get("top_k") == -1:
        fields["top_k"] = 0
    if isinstance(fields.get("seed"), int):
        fields["seed"] %= _SEED
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
