"""`genai_perf_flags`: how a language model is reached, in genai-perf's words, as words for `tpx perf`."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpx.analyzer.models import Flags
from tpx.errors import UsageError
from tpx.options import nearest

ENDPOINTS: Mapping[str, str] = {
    "": "v1/chat/completions",
    "chat": "v1/chat/completions",
    "completions": "v1/completions",
    "embeddings": "v1/embeddings",
}
"""genai-perf's `endpoint-type` -> the path of the OpenAI API."""
RENAMED: Mapping[str, str] = {"random-seed": "seed", "url": "url"}
INSTEAD: Mapping[str, str] = {
    "input-dataset": "give the requests as perf_analyzer_flags: input-data",
    "input-type": "give the requests as perf_analyzer_flags: input-data",
    "input-tokens-mean": "give the requests as perf_analyzer_flags: input-data",
    "input-tokens-stddev": "give the requests as perf_analyzer_flags: input-data",
    "expected-output-tokens": "give max_tokens in the requests of perf_analyzer_flags: input-data",
    "num-of-output-prompts": "give the requests as perf_analyzer_flags: input-data",
}
"""What genai-perf does by itself -> what to do with tpx."""
NEEDLESS: Mapping[str, str] = {
    "tokenizer": "the service counts its tokens",
    "backend": "models are asked through the OpenAI API, whatever runs them",
}
"""What tpx does without -> why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """How one is asked."""

    endpoint: str
    words: tuple[str, ...]
    """Further options of tpx perf."""


def language_model(flags: Flags) -> LanguageModel:
    """Reads the flags. Raises UsageError naming the flag and what to do instead."""
    endpoint, words = "", []
    for name, values in flags.items():
        value = values[-1] if values else ""
        if name in INSTEAD:
            raise UsageError(f"genai_perf_flags: {name}: {INSTEAD[name]}")
        if name == "service-kind" and value != "openai":
            raise UsageError(f"genai_perf_flags: service-kind {value}: tpx measures openai alone")
        if name == "streaming" and value.lower() in ("false", "0", "off"):
            raise UsageError(
                "genai_perf_flags: streaming: false: without a stream there are no tokens to time"
            )
        if name == "endpoint-type" and value not in ENDPOINTS:
            raise UsageError(
                f"genai_perf_flags: endpoint-type: unknown type '{value}'{nearest(value, ENDPOINTS)}"
            )
        if name == "endpoint-type":
            endpoint = endpoint or ENDPOINTS[value]
        elif name == "endpoint":
            endpoint = value
        elif name in RENAMED:
            words.append(f"--{RENAMED[name]}={value}")
        elif name not in ("service-kind", "streaming", *NEEDLESS):
            known = (*RENAMED, *INSTEAD, *NEEDLESS, "endpoint", "endpoint-type", "service-kind", "streaming")
            raise UsageError(f"genai_perf_flags: unknown option '{name}'{nearest(name, known)}")
    return LanguageModel(endpoint=endpoint or ENDPOINTS[""], words=tuple(words))


def language_warnings(flags: Flags, model_type: str) -> tuple[str, ...]:
    """A line for each flag that changes nothing."""
    if model_type != "LLM":
        return ("genai_perf_flags change nothing: they are for model_type LLM",) if flags else ()
    return tuple(
        f"genai_perf_flags: {name} changes nothing: {NEEDLESS[name]}" for name in flags if name in NEEDLESS
    )
