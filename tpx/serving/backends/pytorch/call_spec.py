"""How arguments and results of exported programs nest: PyTorch's tree specifications, as JSON in the
archives."""

import json
from dataclasses import dataclass

from tpx.protocol.json_values import JsonValue

Key = int | str

_DICTS = ("builtins.dict", "collections.OrderedDict")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A place for a tensor, by the keys that lead to it."""

    path: tuple[Key, ...]

    @property
    def argument_label(self) -> str:
        """As Triton calls an input: of the pair (args, kwargs) the first key tells which."""
        return ("KWARGS" if self.path[0] else "ARGS") + _brackets(self.path[1:])

    @property
    def result_label(self) -> str:
        return "RESULT" + _brackets(self.path)


def leaves_of(specification: str) -> list[Leaf]:
    """The leaves of a tree specification as JSON: `[version, {type, context, children_spec}]`, in order."""
    _, root = json.loads(specification)
    leaves: list[Leaf] = []
    _collect(root, (), leaves)
    return leaves


def _collect(node: JsonValue, path: tuple[Key, ...], leaves: list[Leaf]) -> None:
    if node["type"] is None:
        leaves.append(Leaf(path))
        return
    children = node["children_spec"]
    keys: list[Key] = list(range(len(children)))
    if node["type"] in _DICTS:
        context = node["context"]
        keys = json.loads(context) if isinstance(context, str) else context
    for key, child in zip(keys, children, strict=True):
        _collect(child, (*path, key), leaves)


def _brackets(path: tuple[Key, ...]) -> str:
    return "".join(f"[{key}]" for key in path)
