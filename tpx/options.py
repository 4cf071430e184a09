"""One option, one line: a field is the flag, the key in a file, the default and the help at once.

    class HttpSpec(Options):
        http_port: int = option(8000, "port of the HTTP endpoint")

    class ServeConfig(Options):
        http: HttpSpec = group(HttpSpec, "HTTP")

    from_argv(ServeConfig, ["--http-port=9000"]) == from_mapping(ServeConfig, {"http_port": 9000})

A config is options and groups of options; flags and keys are flat, so a name stands in one group only.
Here options are declared, read from a file's values, and built; `argv.py` reads the command line.
"""

import dataclasses
import json
import math
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from tpx.errors import UsageError

T = TypeVar("T")

TRUE_WORDS = frozenset({"true", "on", "1", "yes"})
PART_LEAST = 3
"""Minimum letters of a word that is searched for inside names."""
FALSE_WORDS = frozenset({"false", "off", "0", "no"})


class Option(NamedTuple):
    """Option of a config field, in addition to the field's type and default."""

    help: str
    names: tuple[str, ...] = ()
    """Additional spellings with their dashes: ("-u", "--url")."""
    section: str = ""
    """Heading in the help; by default that of its group."""
    metavar: str = ""
    positional: bool = False
    several: bool = False
    """True for a tuple field whose flag takes all words up to the next option."""
    comma: bool = False
    """True for a tuple field that also accepts "a,b,c" in one value."""
    parse: Callable[[str], Any] | None = None
    """Converts the flag's text to the value; raises ValueError with what was expected."""
    refusal: str = ""
    """Message for a text that is no value of the type, with a place for it; by default made from the type."""
    read: Callable[[Any], Any] | None = None
    """Converts the value of a YAML key, if that is more than text or a list of texts; raises ValueError."""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    """Bounds of a number, or of each of several; `above` is exclusive."""
    default_text: str = ""
    """The default as shown in help and documentation, if its value says too little."""
    counted: bool = False
    """True for an integer option that is a switch: its value is the number of occurrences."""
    inert: bool = False
    """True if accepted for compatibility only; setting it logs a warning."""
    common: bool = False
    """True for common options, which the short help shows."""
    completes: Literal["", "models", "served models", "files"] = ""
    """Values that shell completion offers, if the type does not say it."""
    setting: bool = True
    """False for a flag that only says what this command shall do: neither a variable nor a key sets it."""
    mask: Callable[[str], str] | None = None
    """Hides the credentials in a value that is shown."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Options:
    """Base of configs and of their groups: frozen dataclasses that share their methods.

    Methods generated for each class would take more than 1 ms per class to compile.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, **values: object) -> None:
        """Take the values of options by name, and the defaults of the others. Raises TypeError."""
        fields = {field.name: field for field in dataclasses.fields(self)}
        if unknown := values.keys() - fields.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        for name, field in fields.items():
            if name in values:
                value = values[name]
            elif field.default_factory is not dataclasses.MISSING:
                value = field.default_factory()
            elif field.default is not dataclasses.MISSING:
                value = field.default
            else:
                raise TypeError(f"{type(self).__name__} needs {name}")
            vars(self)[name] = value
        self.__post_init__()

    def __post_init__(self) -> None:
        """Validate the values; raises UsageError."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field '{name}'")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"


C = TypeVar("C", bound=Options)


def option(default: T, help: str, *names: str, **more: Any) -> T:  # noqa: A002 (as Option has it)
    """Return a field with this default that is an option; `more` are additional fields of Option."""
    metadata = {"option": Option(help, names, **more)}
    if type(default).__hash__ is None:  # a mapping; it is never modified
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def required(help: str, *names: str, **more: Any) -> Any:  # noqa: A002 (as Option has it)
    """Return a field without a default that is an option."""
    return dataclasses.field(metadata={"option": Option(help, names, **more)})


def group(kind: type[C], section: str = "") -> C:
    """Return a field that holds a nested config, whose options form this section of the help."""
    return dataclasses.field(default_factory=kind, metadata={"group": kind, "section": section})


def flag_of(name: str) -> str:
    """Return the flag of an option by its name."""
    return "--" + name.replace("_", "-")


class Field(NamedTuple):
    """An option of a config: its Option with the field's name, type, and default."""

    name: str
    type: Any
    default: Any
    option: Option
    section: str
    """Heading in the help."""
    groups: tuple[str, ...]
    """Fields that lead from the config to the option's group."""

    def of(self, config: Any) -> Any:
        """Return its value in a config."""
        for name in (*self.groups, self.name):
            config = getattr(config, name)
        return config

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.flag, *self.option.names)

    @property
    def item_type(self) -> Any:
        """Return the type of one value, inside Optional and tuple[T, ...]."""
        kind = _strip_none(self.type)
        return get_args(kind)[0] if get_origin(kind) is tuple else kind

    @property
    def repeatable(self) -> bool:
        return get_origin(_strip_none(self.type)) is tuple

    @property
    def is_switch(self) -> bool:
        return self.option.counted or (self.item_type is bool and not self.repeatable)


def _strip_none(kind: object) -> object:
    if get_origin(kind) in (Union, types.UnionType):
        rest = [a for a in get_args(kind) if a is not type(None)]
        return rest[0] if len(rest) == 1 else kind
    return kind


class Given(NamedTuple):
    """The value of an option, the text it was read from, and the flag, the variable or the file with it."""

    value: Any
    texts: tuple[str, ...]
    place: str


def fields_of(config: type) -> list[Field]:
    """Return the options of a config in definition order, inert ones last."""
    return list(_sort_fields(config))


@cache
def _sort_fields(config: type) -> tuple[Field, ...]:
    return tuple(sorted(_iter_fields(config), key=lambda field: field.option.inert))


def _iter_fields(config: type, groups: tuple[str, ...] = (), section: str = "") -> Iterator[Field]:
    hints = get_type_hints(config)
    for field in dataclasses.fields(config):
        if "group" in field.metadata:
            inner = field.metadata["section"] or section
            yield from _iter_fields(field.metadata["group"], (*groups, field.name), inner)
        elif "option" in field.metadata:
            made = field.default_factory
            default = field.default if made is dataclasses.MISSING else made()
            known: Option = field.metadata["option"]
            place = known.section or section or "Options"
            yield Field(field.name, hints[field.name], default, known, place, groups)


def given(config: Any) -> dict[str, Any]:
    """Return the options of a config that differ from their defaults, by name."""
    values = ((field, field.of(config)) for field in fields_of(type(config)))
    return {field.name: value for field, value in values if value != field.default}


def refuse(flag: str, reason: str) -> NoReturn:
    """Raise UsageError for an invalid value of a flag."""
    raise UsageError(f"Failed to parse {flag}. {reason}")


def check_range(
    config: Any, *names: str, above: float = -math.inf, least: float = -math.inf, end: str = "."
) -> None:
    """Raise UsageError for an option of a group whose number is not above or at least a bound, or not finite.

    An option that is None was not given. `end` follows the bound in the message.
    """
    bound = f"> {above}" if above > least else f">= {least}"
    for name in names:
        value = getattr(config, name)
        if value is not None and not (above < value < math.inf and value >= least):
            short = config.__dataclass_fields__[name].metadata["option"].names[:1]
            refuse(" ".join((flag_of(name), *(f"({s})" for s in short))), f"The value must be {bound}{end}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)`, or "" if no name is similar or contains the word."""
    import difflib  # late: most command lines have no errors

    names = sorted(known, key=len)
    begin_alike = difflib.get_close_matches(word, [name[: len(word) + 1] for name in names], n=1, cutoff=0.85)
    close = [name for name in names if begin_alike and name.startswith(begin_alike[0])]
    close = close or difflib.get_close_matches(word, names, n=1, cutoff=0.66)
    if not close and len(word) >= PART_LEAST:
        close = [name for name in names if word.lower() in name.lower()]
    return f" (did you mean '{close[0]}'?)" if close else ""


def nearest_for_client(word: str, known: Collection[str]) -> str:
    """Return `nearest` for a name in a request, without keeping an event loop busy.

    A comparison takes a hundred times as long as this filter: only names of about the length of the word that
    begin or end as it does are compared, and none if there are very many.
    """
    if len(word) > 100 or len(known) > 100:
        return ""
    ends = word[:2], word[-2:]
    alike = [n for n in known if abs(len(n) - len(word)) <= 3 and (n[:2] == ends[0] or n[-2:] == ends[1])]
    return nearest(word, alike) if alike else ""


def from_mapping(config: type[C], values: Mapping[str, object], *, source: str = "configuration") -> C:
    """Return a config from a YAML mapping; keys are field names, with underscores or dashes."""
    return build(config, given_in_mapping(config, values, source=source))


def given_in_mapping(
    config: type, values: Mapping[str, Any], *, source: str = "configuration", others: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the values in a YAML mapping, by field; a key without a value gives none.

    For an unknown key, UsageError suggests a similar field, or one of `others`.
    """
    found = read_mapping(config, values, source=source, others=others)
    return {name: given.value for name, given in found.items()}


def read_mapping(
    config: type, values: Mapping[str, Any], *, source: str, others: Iterable[str] = ()
) -> dict[str, Given]:
    """Return what `given_in_mapping` does, with the texts."""
    by_name = {f.name: f for f in fields_of(config) if f.option.setting}
    chosen: dict[str, Given] = {}
    for key, value in values.items():
        field = by_name.get(str(key).replace("-", "_"))
        if field is None:
            raise UsageError(f"{source}: unknown key '{key}'{nearest(str(key), (*by_name, *others))}")
        if value is None:
            continue
        if field.option.read is not None:
            try:
                chosen[field.name] = Given(
                    field.option.read(value), (json.dumps(value, default=str),), source
                )
            except (ValueError, UsageError) as exc:
                raise UsageError(f"{source}: {key}: {exc}") from exc
            continue
        items = value if isinstance(value, list | tuple) else [value]
        if len(items) != 1 and not field.repeatable:
            raise UsageError(f"{source}: {key} takes one value, got {len(items)}")
        texts = tuple(_spell(field, item) for item in items)
        converted = [_convert_text(field, text, f"{source}: {key}") for text in texts]
        joined = _join_values(converted) if field.repeatable else converted[-1]
        chosen[field.name] = Given(joined, texts, source)
    return chosen


def _spell(field: Field, item: object) -> str:
    """Return an item of YAML, in which `off` is false, as a word of the command line."""
    if not isinstance(item, bool):
        return str(item)
    word = "on" if item else "off"
    return word if word in get_args(field.item_type) else str(item).lower()


def read_texts(texts: Iterable[tuple[Field, str, str]]) -> dict[str, Given]:
    """Return the options in texts, each with its field and the flag or variable that has it."""
    chosen: dict[str, Given] = {}
    given: dict[str, list[tuple[str, Any]]] = {}
    for field, name, text in texts:
        given.setdefault(field.name, []).append((text, _convert_text(field, text, name)))
        values = [value for _, value in given[field.name]]
        value = _join_values(values) if field.repeatable else values[-1]
        if field.option.counted:
            value = sum(values) if values[-1] else 0
        written = tuple(text for text, _ in given[field.name])
        chosen[field.name] = Given(value, written if field.repeatable else written[-1:], name)
    return chosen


def build(config: type[C], chosen: Mapping[str, object]) -> C:
    """Return a config with these values. Raises UsageError if one without a default is missing."""
    missing = [
        f.option.metavar or f.flag
        for f in fields_of(config)
        if f.default is dataclasses.MISSING and f.name not in chosen
    ]
    if missing:
        raise UsageError(f"missing: {', '.join(missing)}")
    for field in fields_of(config):
        values = chosen.get(field.name)
        for value in values if isinstance(values, tuple) else () if values is None else (values,):
            _check_bounds(field, field.flag, value)
    left = dict(chosen)
    made = _build_group(config, left)
    if left:
        raise TypeError(f"{config.__name__} has no {', '.join(left)}")
    return made


def _build_group(config: type[C], left: dict[str, object]) -> C:
    """Return a config from its part of the values, which is removed from `left`."""
    values: dict[str, object] = {}
    for field in dataclasses.fields(config):
        if "group" in field.metadata:
            values[field.name] = _build_group(field.metadata["group"], left)
        elif field.name in left:
            values[field.name] = left.pop(field.name)
    return config(**values)


def _join_values(items: Sequence[object]) -> tuple[object, ...]:
    """Join the values of an option; one word with commas gives several."""
    return tuple(value for item in items for value in (item if isinstance(item, tuple) else (item,)))


def _convert_text(field: Field, text: str, name: str) -> object:
    try:
        if field.option.parse is not None:
            return field.option.parse(text)
        if field.option.counted and text.lower() in TRUE_WORDS | FALSE_WORDS:
            return int(text.lower() in TRUE_WORDS)
        if field.option.comma:
            parts = [part.strip() for part in text.split(",") if part.strip()]
            return tuple(_check_bounds(field, name, _parse_scalar(field.item_type, part)) for part in parts)
        return _check_bounds(field, name, _parse_scalar(field.item_type, text))
    except ValueError as exc:
        if field.option.refusal:
            flag = name if name.startswith("--") else f"{name} ({field.name})"
            refuse(flag, field.option.refusal.format(text))
        raise UsageError(f"Failed to parse {name}. Invalid value provided: {text} ({exc})") from exc


def _check_bounds(field: Field, name: str, value: Any) -> Any:
    low, high, above = field.option.minimum, field.option.maximum, field.option.above
    bounds = ""
    if above is not None and not above < value <= (value if high is None else high):
        bounds = f"above {above:g}" + ("" if high is None else f", up to {high:g}")
    elif low is not None and not low <= value <= (value if high is None else high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
    if bounds:
        raise UsageError(f"{name} must be {bounds}, got {value}")
    return value


def _parse_number(kind: type, text: str) -> object:
    try:
        if "_" in text or text != text.strip():
            raise ValueError(text)  # int() would accept 1_000
        return kind(text)
    except ValueError:
        raise ValueError("expected an integer" if kind is int else "expected a number") from None


def _parse_scalar(kind: object, text: str) -> object:
    """Return one value of a field's item type; ValueError says what was expected."""
    if kind is bool:
        word = text.lower()
        if word not in TRUE_WORDS | FALSE_WORDS:
            raise ValueError("expected true, on, 1, false, off or 0")
        return word in TRUE_WORDS
    if kind in (int, float):
        return _parse_number(kind, text)
    if kind is Path:
        return Path(text)
    choices = [m.value for m in kind] if isinstance(kind, type) and issubclass(kind, Enum) else None
    if choices is None and get_origin(kind) is Literal:
        choices = list(get_args(kind))
    if choices is None:
        return text
    for choice in choices:
        if str(choice).lower() == text.lower():
            return kind(choice) if isinstance(kind, type) else choice
    raise ValueError(f"expected one of: {', '.join(map(str, choices))}{nearest(text, map(str, choices))}")
