"""Command lines of aiperf and genai-perf: their names become those of `tpx perf`, where there is one.

`aiperf profile --model llm --url localhost:8000 --endpoint-type chat --streaming --isl 512 --osl 128` works
with `tpx perf` in place of `aiperf profile`. Source: aiperf 0.13, config/flags/cli_config.py.
"""

from collections.abc import Mapping, Sequence

from tpx.errors import UsageError
from tpx.options import nearest

ENDPOINTS: Mapping[str, str] = {
    "chat": "v1/chat/completions",
    "completions": "v1/completions",
    "embeddings": "v1/embeddings",
}
"""Values of `--endpoint-type`, and the paths of OpenAI's API."""
_INPUT = ("isl", "synthetic-input-tokens", "prompt-input-tokens", "input-tokens")
_OUTPUT = ("osl", "output-tokens", "prompt-output-tokens", "expected-output-tokens")
_ALIASES: Mapping[str, Sequence[str]] = {
    "prompts": ("num-prompts", "num-dataset-entries", "num-of-output-prompts"),
    "prefix-tokens": ("prefix-prompt-length", "prompt-prefix-length"),
    "prefixes": ("num-prefix-prompts", "prefix-prompt-pool-size", "prompt-prefix-pool-size"),
    "seed": ("random-seed",),
    "model": ("model-names",),
    "endpoint": ("custom-endpoint",),
    "request-count": ("num-requests",),
    "warmup-request-count": ("num-warmup-requests",),
    "timeout": ("request-timeout-seconds",),
    "input-data": ("input-file",),
    "request-distribution": ("arrival-pattern", "request-rate-mode"),
    "gamma-shape": ("arrival-smoothness", "vllm-burstiness", "burstiness"),
    "ramp-seconds": ("concurrency-ramp-duration",),
    "speed": ("synthesis-speedup-ratio",),
    "turns": ("conversation-turn-mean", "session-turns-mean"),
}
_RENAMED = {alias: ours for ours, aliases in _ALIASES.items() for alias in aliases}
_DEVIATIONS = {
    **{f"{name}-stddev": "input-tokens" for name in _INPUT},
    **{f"{name}-stddev": "output-tokens" for name in _OUTPUT},
}
_MEANS = {
    **dict.fromkeys(("isl", *(f"{name}-mean" for name in _INPUT[1:])), "input-tokens"),
    **dict.fromkeys(
        ("osl", "expected-output-tokens", *(f"{name}-mean" for name in _OUTPUT[1:3])), "output-tokens"
    ),
}
_GOODPUT = {
    "time_to_first_token": "ttft",
    "time_to_second_token": "ttst",
    "inter_token_latency": "itl",
    "request_latency": "latency",
}
INSTEAD: Mapping[str, str] = {
    "benchmark-duration": "a level lasts until it is stable, at most --max-trials windows",
    "extra-inputs": "give whole bodies with --input-data",
    "public-dataset": "nothing is downloaded: give its file with --input-data",
    "conversation-num": "use --prompts, the turns of all conversations, and --session-concurrency",
    "conversation-turn-delay-mean": "use --think-time SECONDS",
    "session-turn-delay-mean": "use --think-time SECONDS",
    "user-centric-rate": "use --concurrency-range USERS --think-time SECONDS",
    "api-key": "give it as a header: -H 'Authorization: Bearer KEY'",
    "search-recipe": "use --slo with the objectives",
}
"""Options that mean something else here, with what to use."""
NEEDLESS = ("custom-dataset-type",)
"""Options whose values are known without them: the content of a file says what it is."""
NAMES = frozenset({*_RENAMED, *_DEVIATIONS, *_MEANS, *INSTEAD, *NEEDLESS, "endpoint-type", "goodput"})
"""Options that are read here; `--concurrency` and `--request-rate` are beginnings of perf_analyzer's."""


def translate(argv: Sequence[str]) -> list[str]:
    """Return a command line with aiperf's names replaced. Raises UsageError for those without a meaning."""
    words = list(argv[1:] if argv[:1] == ["profile"] else argv)
    out: list[str] = []
    means: dict[str, str] = {}
    deviations: dict[str, str] = {}
    while words:
        word = words.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in NAMES:
            out.append(word)
            continue
        value = value if equals else _take_value(name, words)
        if name in INSTEAD:
            raise UsageError(f"tpx perf has no --{name}: {INSTEAD[name]}")
        if name in _MEANS:
            means[_MEANS[name]] = value
        elif name in _DEVIATIONS:
            deviations[_DEVIATIONS[name]] = value
        elif name == "endpoint-type":
            out += _name_endpoint(value, argv)
        elif name not in NEEDLESS:
            out.append(f"--{_RENAMED.get(name, name)}={_read_bounds(value) if name == 'goodput' else value}")
    for ours, deviation in deviations.items():
        if ours not in means:
            raise UsageError(f"a standard deviation of {ours.replace('-', ' ')} requires their mean")
        means[ours] += f",sd={deviation}"
    return [*out, *(f"--{ours}={length}" for ours, length in means.items())]


def _take_value(name: str, words: list[str]) -> str:
    if not words:
        raise UsageError(f"--{name} requires a value")
    return words.pop(0)


def _name_endpoint(kind: str, argv: Sequence[str]) -> list[str]:
    if kind not in ENDPOINTS:
        raise UsageError(f"--endpoint-type: unknown type '{kind}'{nearest(kind, ENDPOINTS)}")
    named = any(
        word.startswith(("--endpoint=", "--custom-endpoint")) or word == "--endpoint" for word in argv
    )
    return ["--service-kind=openai", *([] if named else [f"--endpoint={ENDPOINTS[kind]}"])]


def _read_bounds(text: str) -> str:
    """Return `time_to_first_token:200 inter_token_latency:40`, in ms, as `ttft<200ms,itl<40ms`."""
    bounds = []
    for part in text.split():
        name, colon, value = part.partition(":")
        if not colon:
            return text  # our own form
        if name not in _GOODPUT:
            raise UsageError(f"--goodput: unknown figure '{name}'{nearest(name, _GOODPUT)}")
        bounds.append(f"{_GOODPUT[name]}<{value}ms")
    return ",".join(bounds)
