"""`model_config_parameters`: the fields of a model's configuration to vary, and their values.

A list given for a single-valued field is a sweep. A repeated field takes a list anyway, so its sweep is
a list of lists; `{sweep: [...]}` makes a sweep explicit. Nested messages vary at their leaves, and all
axes are combined. The schema is ModelConfig; errors name the path of the field.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigAxis:
    """One field of the configuration and the values it takes in turn."""

    path: Path
    """Names of fields, keys of maps, positions in lists: ("instance_group", 0, "count")."""
    values: tuple[Any, ...]
    """Values as in JSON."""

    @property
    def label(self) -> str:
        """The path as text: `instance_group[0].count`."""
        return label(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSweep:
    """Axes whose values are combined freely; false without an axis."""

    axes: tuple[ConfigAxis, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.axes)

    @property
    def combinations(self) -> int:
        return math.prod(len(axis.values) for axis in self.axes)

    def deltas(self) -> Iterator[dict[str, Any]]:
        """Yield every combination as a change to the model's configuration; max_batch_size varies fastest."""
        ordered = sorted(self.axes, key=lambda axis: axis.path == ("max_batch_size",))
        for values in itertools.product(*(axis.values for axis in ordered)):
            yield delta_of([axis.path for axis in ordered], values)


class BadField(ValueError):
    """An unknown key, or a value of the wrong type; `path` leads to it."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{label(path)}: {message}" if path else message)
        self.path = path
        self.message = message


def integer(value: object) -> int:
    """Parse an integer, which may be text."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected an integer, got {value!r}")
    return value


def stepped(value: Mapping[object, object]) -> tuple[int, ...]:
    """Return the integers from `start` to `stop` inclusive, by `step`. Raises ValueError."""
    if set(value) - {"start", "stop", "step"} or not {"start", "stop"} <= set(value):
        raise ValueError("expected a value, a list, or start, stop and step")
    try:
        start, stop, step = (integer(value.get(key, 1)) for key in ("start", "stop", "step"))
    except ValueError as exc:
        raise ValueError("start, stop and step are integers") from exc
    if step < 1 or start > stop:
        raise ValueError(f"start {start} to stop {stop} by step {step} has no values")
    return tuple(range(start, stop + 1, step))


def label(path: Path) -> str:
    """Return the path as text: `instance_group[0].count`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def delta_of(paths: Sequence[Path], values: Sequence[object]) -> dict[str, object]:
    """Return JSON with the values at their paths."""
    root: dict[str, object] = {}
    for path, value in zip(paths, values, strict=True):
        node: Any = root
        for part, following in itertools.pairwise(path):
            fresh: Any = [] if isinstance(following, int) else {}
            if isinstance(node, list):
                while len(node) <= int(part):
                    node.append(fresh)
                node = node[int(part)]
            else:
                node = node.setdefault(part, fresh)
        if isinstance(node, list):
            node.append(value)
        else:
            node[path[-1]] = value
    return root


def read_sweep(value: object) -> ConfigSweep:
    """Parse a sweep from a YAML mapping of ModelConfig fields. Raises BadField."""
    if not isinstance(value, Mapping):
        raise BadField((), f"expected fields of the model configuration, got {_describe_value(value)}")
    from tpx.protocol import messages  # late: help needs no protobuf

    return ConfigSweep(axes=tuple(_iter_message_axes(value, messages.ModelConfig.DESCRIPTOR, ())))


def _iter_message_axes(value: Any, descriptor: Any, path: Path) -> Iterator[ConfigAxis]:
    """Yield the axes of a message's fields; `dynamic_batching:` without a value is the empty message."""
    if value is None and path:
        value = {}
    if not isinstance(value, Mapping):
        raise BadField(path, f"expected fields of {descriptor.name}, got {_describe_value(value)}")
    if not value and path:
        yield ConfigAxis(path=path, values=({},))
    for key, item in value.items():
        field = descriptor.fields_by_name.get(str(key))
        if field is None:
            from tpx.protocol.config_hints import suggest_field  # late, as above

            meant = suggest_field(descriptor, str(key))
            raise BadField((*path, str(key)), f"ModelConfig has no such field here{meant}")
        yield from _iter_field_axes(item, field, (*path, field.name))


def _iter_field_axes(value: object, field: Any, path: Path) -> Iterator[ConfigAxis]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        yield from _iter_map_axes(value, field, path)
        return
    alternatives = _list_alternatives(value, field, path)
    if len(alternatives) == 1:
        yield from _iter_value_axes(alternatives[0], field, path)
        return
    expanded = []
    for alternative in alternatives:
        axes = list(_iter_value_axes(alternative, field, path))
        for values in itertools.product(*(axis.values for axis in axes)):
            found: Any = delta_of([axis.path for axis in axes], values)
            for part in path:
                found = found[part]
            expanded.append(found)
    yield ConfigAxis(path=path, values=tuple(expanded))


def _list_alternatives(value: Any, field: Any, path: Path) -> Sequence[Any]:
    """Return the values that a field takes in turn."""
    if isinstance(value, Mapping) and set(value) == {"sweep"}:
        value = value["sweep"]
        if not isinstance(value, list) or not value:
            raise BadField((*path, "sweep"), "expected a list of values")
        return value
    if not _is_repeated(field):
        if isinstance(value, Mapping) and field.message_type is None:
            try:
                return stepped(value)
            except ValueError as exc:
                raise BadField(path, str(exc)) from exc
        if not isinstance(value, list):
            return [value]
        if not value:
            raise BadField(path, "an empty list has no value to try")
        return value
    if not isinstance(value, list):
        raise BadField(
            path, f"expected a list, or a list of lists to try several, got {_describe_value(value)}"
        )
    return value if value and all(isinstance(each, list) for each in value) else [value]


def _iter_value_axes(value: Any, field: Any, path: Path) -> Iterator[ConfigAxis]:
    """Yield the axes of one value of a field; a message may still vary at its leaves."""
    if not _is_repeated(field):
        if field.message_type is not None:
            yield from _iter_message_axes(value, field.message_type, path)
        else:
            yield ConfigAxis(path=path, values=(_parse_scalar(value, field, path),))
        return
    if not isinstance(value, list):
        raise BadField(path, f"expected a list, got {_describe_value(value)}")
    if field.message_type is None or not value:
        yield ConfigAxis(path=path, values=([_parse_scalar(each, field, path) for each in value],))
        return
    for node, each in enumerate(value):
        yield from _iter_message_axes(each, field.message_type, (*path, node))


def _iter_map_axes(value: Any, field: Any, path: Path) -> Iterator[ConfigAxis]:
    """Yield the axes of a map, whose values vary independently. A parameter may be given as plain text."""
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        raise BadField(path, f"expected a mapping, got {_describe_value(value)}")
    item = field.message_type.fields_by_name["value"]
    if not value:
        yield ConfigAxis(path=path, values=({},))
    for key, each in value.items():
        bare = not isinstance(each, Mapping) or set(each) == {"sweep"}
        if bare and item.message_type is not None and "string_value" in item.message_type.fields_by_name:
            each = {"string_value": each}
        yield from _iter_field_axes(each, item, (*path, str(key)))


def _is_repeated(field: "FieldDescriptor") -> bool:
    from tpx.protocol.config_text import is_repeated  # late: help needs no protobuf

    return is_repeated(field)


def _parse_scalar(value: Any, field: Any, path: Path) -> Any:
    if isinstance(value, list | Mapping) or value is None:
        raise BadField(path, f"expected a single value, got {_describe_value(value)}")
    if field.enum_type is not None:
        names = list(field.enum_type.values_by_name)
        if str(value) not in names and value not in field.enum_type.values_by_number:
            from tpx.protocol.config_hints import suggest_value  # late, as above

            meant = suggest_value(str(value), names)
            raise BadField(path, f"expected one of {', '.join(names)}{meant}")
        return value
    kinds = _KINDS[field.cpp_type]
    if field.cpp_type == field.CPPTYPE_STRING:
        return str(value).lower() if isinstance(value, bool) else str(value)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise BadField(path, f"expected {_WORDS[kinds]}, got {_describe_value(value)}")
    return value


_INTEGER, _NUMBER, _BOOL, _TEXT = (int,), (int, float), (bool,), (str,)
_WORDS: Mapping[tuple[type, ...], str] = {_INTEGER: "an integer", _NUMBER: "a number", _BOOL: "true or false"}
# by FieldDescriptor.cpp_type: int32, int64, uint32, uint64, double, float, bool, (enum), string
_KINDS: Mapping[int, tuple[type, ...]] = {
    1: _INTEGER, 2: _INTEGER, 3: _INTEGER, 4: _INTEGER, 5: _NUMBER, 6: _NUMBER, 7: _BOOL, 9: _TEXT,
}  # fmt: skip


def _describe_value(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else "nothing" if value is None else repr(value)
