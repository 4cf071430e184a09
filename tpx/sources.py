"""Options that do not come from the command line: environment variables, and a file in YAML or TOML.

A flag takes precedence over the variable of the same option, the variable over the key in the file.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpx.argv import read_argv
from tpx.errors import UsageError
from tpx.options import Field, Given, fields_of, flag_of, nearest, option, read_mapping, read_texts

if TYPE_CHECKING:
    import yaml

HIDDEN = "***"
SECTION = "Configuration"
"""Heading of both in the help of commands that have them beside a config."""
_LINK = re.compile(r"(tcp|udp|sctp)://\S+:\d+")
_NAME_OF_LINK = re.compile(r".*_SERVICE_(HOST|PORT(_\w+)?)|.*_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")


def config_file(*names: str, section: str = "") -> Path | None:
    """Return a field for the file with options."""
    return option(
        None,
        "YAML or TOML file with these options as keys; the command line takes precedence",
        *names,
        metavar="FILE",
        section=section,
        common=True,
    )


def show_config(section: str = "") -> bool:
    """Return a field for the flag that shows all options instead of using them."""
    return option(
        False,
        "print each option with its value and where it comes from, and exit",
        section=section,
        setting=False,
    )


def collect(config: type, argv: Sequence[str], command: str, environ: Mapping[str, str]) -> dict[str, Given]:
    """Return the options that flags, the variables of a command and its file give.

    Raises UsageError for an invalid value, and for an unknown flag or key.
    """
    given = read_flags(config, argv, command, environ)
    return read_file(config, given["config_file"].value if "config_file" in given else None) | given


def read_flags(
    config: type, argv: Sequence[str], command: str, environ: Mapping[str, str]
) -> dict[str, Given]:
    """Return the options that flags and the variables of a command give. Raises UsageError."""
    flags = read_argv(config, argv)
    variables = read_texts(
        (field, name, text)
        for name, field in _name_variables(command, config).items()
        if field.name not in flags and not _links_service(name, environ.get(name, ""))
        for text in _iter_values(field, environ.get(name, ""))
    )
    return variables | flags


def values_of(given: Mapping[str, Given]) -> dict[str, Any]:
    """Return the values by name of the option."""
    return {name: each.value for name, each in given.items()}


def missing_flags(given: Mapping[str, Given]) -> list[str]:
    """Return flags for the options that variables and the file give."""
    others = {name: each for name, each in given.items() if not each.place.startswith("-")}
    others.pop("config_file", None)
    return [f"{flag_of(name)}={text}" for name, each in others.items() for text in each.texts]


def doubtful_variables(command: str, environ: Mapping[str, str], *configs: type) -> Iterator[str]:
    """Yield a warning for each variable that is no option of the command's configs but looks like one."""
    prefix = f"TPX_{command.upper()}_"
    known = {name for config in configs for name in _name_variables(command, config)}
    for name, text in environ.items():
        if not name.startswith(prefix):
            continue
        if name in known and _links_service(name, text):
            yield f"{name}={text} is ignored: Kubernetes sets it for a Service of that name"
        elif name not in known and not _links_service(name, text):
            # the prefix, which all names share, would make any two of them similar
            meant = nearest(name.removeprefix(prefix), [each.removeprefix(prefix) for each in known])
            meant = meant.replace("'", f"'{prefix}", 1)
            yield f"unknown environment variable '{name}'{meant}"


def _name_variables(command: str, config: type) -> dict[str, Field]:
    return {variable_of(command, field): field for field in fields_of(config) if field.option.setting}


def variable_of(command: str, field: Field) -> str:
    """Return the environment variable of a command's option."""
    return f"TPX_{command.upper()}_{field.name.upper()}"


def _links_service(name: str, text: str) -> bool:
    """Return True for a variable that Kubernetes sets for a Service of that name."""
    address = name.endswith("_PORT") and _LINK.fullmatch(text)
    return bool(address or _NAME_OF_LINK.fullmatch(name))


def _iter_values(field: Field, text: str) -> Iterator[str]:
    """Yield the values in a variable, which has a line for each; an empty one has none."""
    yield from filter(None, text.splitlines() if field.repeatable else (text,))


def read_file(
    config: type,
    path: Path | None,
    ignored: Collection[str] = (),
    former: Mapping[str, str] | None = None,
) -> dict[str, Given]:
    """Return the options in a YAML or TOML file, without keys that are ignored; none without a file.

    Raises UsageError with the line for an unknown key, one in `former`, which says why, or an invalid value.
    """
    found: dict[str, Given] = {}
    if path is None:
        return found
    content, line_of = _read_toml(path) if path.suffix == ".toml" else _read_yaml(path)
    for key, value in content.items():
        name = str(key).replace("-", "_")
        try:
            if former and name in former:
                raise UsageError(f"{path}: '{key}' {former[name]}")
            if name == "config_file":
                raise UsageError(f"{path}: a file names no other one")
            if name not in ignored:
                found |= read_mapping(config, {key: value}, source=str(path))
        except UsageError as exc:
            line = line_of((str(key), *getattr(exc.__cause__, "path", ())))
            raise UsageError(exc.message.replace(f"{path}: ", f"{path}:{line}: ", 1)) from exc
    return found


_LineOf = Callable[[Sequence[str | int]], int]
"""Finds the line of a key, of a key or an index in its value, and so on."""


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"--config-file {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise UsageError(f"--config-file {path}: not UTF-8: {exc}") from exc


def _read_toml(path: Path) -> tuple[Mapping[str, object], _LineOf]:
    import tomllib  # late, as yaml: most commands read no file

    text = _read_text(path)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise UsageError(f"--config-file {path}: not TOML: {exc}") from exc

    def find_line(keys: Sequence[str | int]) -> int:
        named = re.search(rf"^\s*[\[\"']*{re.escape(str(keys[0]))}\b", text, re.MULTILINE)
        return text.count("\n", 0, named.end()) + 1 if named else 1

    return content, find_line


def _read_yaml(path: Path) -> tuple[Mapping[str, object], _LineOf]:
    try:
        import yaml
    except ImportError as exc:
        raise UsageError("--config-file needs the package pyyaml: pip install pyyaml") from exc
    text = _read_text(path)
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise UsageError(f"--config-file {path}: not YAML: {' '.join(str(exc).split())}") from exc
    if not isinstance(content, Mapping):
        raise UsageError(f"--config-file {path}: expected options as `key: value` lines")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    _refuse_duplicate_keys(path, root)

    def find_line(keys: Sequence[str | int]) -> int:
        node, line = root, 1
        for key in keys:
            found = _find_yaml_value(node, key)
            if found is None:
                break
            line, node = found
        return line

    return content, find_line


def _refuse_duplicate_keys(path: Path, node: "yaml.Node | None") -> None:
    """Raise UsageError for a duplicate key in a mapping, of which YAML would silently use the last."""
    import yaml

    values, seen = [node], set()
    while values:
        node = values.pop()
        if id(node) in seen:
            continue  # an alias may make the document cyclic
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            values += node.value
        if not isinstance(node, yaml.MappingNode):
            continue
        lines: dict[str, int] = {}
        for key, value in node.value:
            values.append(value)
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines and name != "<<":
                raise UsageError(
                    f"{path}:{line}: {name} is repeated here; it was first set on line {lines[name]}"
                )
            lines[name] = line


def _find_yaml_value(node: "yaml.Node | None", part: str | int) -> "tuple[int, yaml.Node] | None":
    """Return the line and the value of a key or an index; a key is searched in each mapping of a list."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if str(key.value).replace("-", "_") == str(part).replace("-", "_"):
                return key.start_mark.line + 1, value
        return None
    if not isinstance(node, yaml.SequenceNode):
        return None
    if isinstance(part, int):
        items = node.value[part : part + 1]
        return (items[0].start_mark.line + 1, items[0]) if items else None
    return next(filter(None, (_find_yaml_value(item, part) for item in node.value)), None)
