"""Descriptions of a server and its models, read from the JSON form of the v2 protocol."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import SequenceMatcher

from tpx.errors import MeasurementError, UsageError
from tpx.options import nearest
from tpx.perf.settings import parse_shape
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.json_values import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDescription:
    """An input or output of a model; `shape` excludes the batch dimension, and dynamic dimensions are -1."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    shape_tensor: bool = False
    """True for a shape tensor, which applies to the whole batch and so has no batch dimension."""
    usual: tuple[int, ...] = ()
    """A shape without dynamic dimensions that the model's configuration names; empty if it names none."""
    usual_source: str = ""
    """Where the configuration names it."""

    def __str__(self) -> str:
        return f"{self.name} {self.datatype} {list(self.shape)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDescription:
    """A server's description of itself."""

    name: str
    version: str
    extensions: frozenset[str]


@dataclass(frozen=True, slots=True)
class ModelKey:
    """A model by name and version; with an empty version the server's version policy picks one."""

    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.version}" if self.version else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """The properties of a model that a load generator needs."""

    name: str
    versions: tuple[str, ...] = ()
    platform: str = ""
    inputs: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...] = ()
    max_batch_size: int = 0
    scheduler: str = "none"
    decoupled: bool = False
    response_cache: bool = False
    steps: tuple[ModelKey, ...] = ()
    """Models that an ensemble calls."""


Snapshot = Mapping[ModelKey, Mapping[str, int]]
"""Statistics of model versions since each was loaded, by the names of ServerBreakdown's fields."""


def check_names(flag: str, names: Iterable[str], model: ModelDescription, kind: str) -> None:
    """Raise UsageError if a name given with `flag` is not an input (or output, by `kind`) of the model."""
    known = [spec.name for spec in (model.inputs if kind == "input" else model.outputs)]
    for name in names:
        if name not in known:
            raise UsageError(
                f"{flag} {name}: model '{model.name}' has no such {kind}{nearest(name, known)} "
                f"(has: {', '.join(known)})"
            )


@contextmanager
def _reject_malformed(what: str) -> Iterator[None]:
    """Raise MeasurementError if the enclosed code finds that a response does not have the protocol's form."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise MeasurementError(
            f"the server's {what} cannot be parsed as v2 protocol ({exc!r}): is it a v2 server?"
        ) from exc


def server_description(answer: JsonObject) -> ServerDescription:
    """Read the response to `GET v2`."""
    with _reject_malformed("description of itself"):
        return ServerDescription(
            name=str(answer.get("name", "")),
            version=str(answer.get("version", "")),
            extensions=frozenset(answer.get("extensions") or ()),
        )


def model_description(metadata: JsonObject, config: JsonObject | None) -> ModelDescription:
    """Read the responses to `GET v2/models/M` and, if the server has that extension, `.../config`.

    The metadata's shapes carry the batch dimension of a batching model; the description leaves it out.
    """
    config = config or {}
    with _reject_malformed(f"description of model '{metadata.get('name', '')}'"):
        return ModelDescription(
            name=str(metadata.get("name", "")),
            versions=tuple(metadata.get("versions") or ()),
            platform=str(metadata.get("platform", "")),
            inputs=_describe_tensors(metadata, config, "input"),
            outputs=_describe_tensors(metadata, config, "output"),
            max_batch_size=int(config.get("max_batch_size", 0)),
            scheduler=next((name for key, name in _SCHEDULERS.items() if key in config), "none"),
            decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
            response_cache=bool(config.get("response_cache", {}).get("enable", False)),
            # the latest version of a step's model is -1, or 0 if the step names none
            steps=tuple(
                dict.fromkeys(
                    ModelKey(step["model_name"], str(version) if int(version) > 0 else "")
                    for step in config.get("ensemble_scheduling", {}).get("step", ())
                    for version in (step.get("model_version", -1),)
                )
            ),
        )


def _describe_tensors(metadata: JsonObject, config: JsonObject, kind: str) -> tuple[TensorDescription, ...]:
    batches = int(config.get("max_batch_size", 0)) > 0
    configured = {item["name"]: item for item in config.get(kind, ())}
    usual = dict(_usual_shapes(config)) if kind == "input" else {}
    out = []
    for spec in metadata.get(kind + "s") or ():
        name, datatype = spec["name"], spec["datatype"]
        if kind == "input" and datatype not in BY_NAME:
            raise MeasurementError(
                f"{kind} '{name}' of model '{metadata.get('name')}' has the datatype '{datatype}', "
                f"which is not in the v2 protocol (it has: {', '.join(BY_NAME)})"
            )
        shape = tuple(int(d) for d in spec.get("shape", ()))
        settings = configured.get(name, {})
        sizes, source = usual.get(name, ((), ""))
        out.append(
            TensorDescription(
                name=name,
                datatype=datatype,
                shape=shape[1:] if batches else shape,
                optional=bool(settings.get("optional")),
                shape_tensor=bool(settings.get("is_shape_tensor")),
                usual=sizes,
                usual_source=source,
            )
        )
    return tuple(out)


SHAPES_PARAMETER = "shapes"
"""Parameter of a configuration that names shapes of requests, as --shape does: "x:3,224,224 mask:1"."""


def _usual_shapes(config: JsonObject) -> Iterator[tuple[str, tuple[tuple[int, ...], str]]]:
    """Yield the shapes that a configuration names for inputs; the later of two is the one to take."""
    for request in config.get("model_warmup") or ():
        for name, tensor in (request.get("inputs") or {}).items():
            yield (
                name,
                (tuple(map(int, tensor.get("dims") or ())), f"warm-up request '{request.get('name', '')}'"),
            )
    words = (config.get("parameters") or {}).get(SHAPES_PARAMETER, {}).get("string_value", "")
    for word in words.split():
        try:
            shape = parse_shape(word)
        except UsageError as exc:
            raise MeasurementError(f"its parameter '{SHAPES_PARAMETER}', {word}: {exc}") from exc
        yield shape.name, (shape.dims, f"parameter '{SHAPES_PARAMETER}'")


_SCHEDULERS = {
    "sequence_batching": "sequence",
    "ensemble_scheduling": "ensemble",
    "dynamic_batching": "dynamic",
}
_DURATIONS = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)


def model_counters(answer: JsonObject) -> Snapshot:
    """Read the response to `GET v2/models/M/stats`; counters that the server omits are 0."""
    out = {}
    with _reject_malformed("statistics"):
        for entry in answer.get("model_stats") or ():
            counters = {key: int(entry.get(key, 0)) for key in ("inference_count", "execution_count")}
            for name in _DURATIONS:
                duration = entry.get("inference_stats", {}).get(name, {})
                counters[f"{name}_count"] = int(duration.get("count", 0))
                counters[f"{name}_ns"] = int(duration.get("ns", 0))
            counters["compute_count"] = counters["compute_infer_count"]
            out[ModelKey(entry["name"], str(entry.get("version", "")))] = counters
    return out


MOST_NAMES = 20
READY = "READY"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """A model version in a server's repository index."""

    name: str
    version: str = ""
    state: str = ""
    """READY, UNAVAILABLE, ...; empty for a version that was never loaded."""
    reason: str = ""


def index_entries(models: Iterable[JsonObject]) -> tuple[IndexEntry, ...]:
    """Read the response to the index request of the v2 protocol's model repository extension."""
    return tuple(
        IndexEntry(
            name=str(model.get("name", "")),
            version=str(model.get("version", "")),
            # over gRPC, MLServer prefixes the state with its enumeration's name
            state=str(model.get("state", "")).removeprefix("State."),
            reason=str(model.get("reason", "")),
        )
        for model in models
    )


def instead(asked: ModelKey, index: Sequence[IndexEntry]) -> str:
    """Return advice to append to the server's error that it does not know `asked`; empty without an index."""
    own = [entry for entry in index if entry.name == asked.name]
    ready = [entry.version for entry in own if entry.state == READY]
    if ready:
        named = ", ".join(filter(None, ready))
        return f"; the server has it in version {named}" if named else "; the server has it without versions"
    if own:
        states = [f"{entry.state}: {entry.reason}" if entry.reason else entry.state for entry in own]
        return f"; the server has it, but it is {' / '.join(states) if any(states) else 'not loaded'}"
    names = sorted({entry.name for entry in index if entry.state == READY})
    if not names:
        return "; the server has no model that is ready" if index else ""
    rest = ""
    if (more := len(names) - MOST_NAMES) > 0:
        names.sort(key=lambda name: SequenceMatcher(None, asked.name, name).ratio(), reverse=True)
        rest = f" and {more} more"
    return f"{nearest(asked.name, names)}; the server has: {', '.join(names[:MOST_NAMES])}{rest}"
