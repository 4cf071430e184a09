"""check_kserve.py FILE...: check examples for KServe, strictly, against the models of the `kserve` package.

`make test-kserve` runs it in an environment of its own: the package brings 450 MB and older dependencies.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kserve
import yaml
from kubernetes import client

LISTED = re.compile(r"[lL]ist\[(.+)\]")
MAPPED = re.compile(r"dict\(str, (.+)\)|Dict\[str, (.+)\]")
PLAIN: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (int, float)}
FREE = ("object", "ResourceQuantity")


def check(value: Any, kind: str, where: str) -> None:
    """Raise ValueError where a value is not of this kind of the package."""
    if listed := LISTED.fullmatch(kind):
        for index, item in enumerate(value):
            check(item, listed[1], f"{where}[{index}]")
    elif mapped := MAPPED.fullmatch(kind):
        for key, item in value.items():
            check(item, mapped[1] or mapped[2], f"{where}.{key}")
    elif kind in PLAIN:
        if not isinstance(value, PLAIN[kind]):
            raise ValueError(f"{where}: {value!r} is no {kind}")
    elif kind not in FREE:
        check_object(value, getattr(kserve, kind, None) or getattr(client, kind), where)


def check_object(value: Mapping[str, Any], model: Any, where: str) -> None:
    """Raise ValueError where a mapping has other keys than the model, lacks one, or a value is wrong."""
    attributes = {name: attribute for attribute, name in model.attribute_map.items()}
    if unknown := value.keys() - attributes.keys():
        raise ValueError(f"{where}: {model.__name__} has no {', '.join(sorted(unknown))}")
    for name, item in value.items():
        check(item, model.openapi_types[attributes[name]], f"{where}.{name}")
    model(**{attributes[name]: item for name, item in value.items()})  # refuses what is missing


def main() -> None:
    """Check the files that are named."""
    for name in sys.argv[1:]:
        found = yaml.safe_load(Path(name).read_text("utf-8"))
        version = "".join(part.capitalize() for part in found["apiVersion"].partition("/")[2].split("."))
        check(found, f"{version}{found['kind']}", found["kind"])
        print(f"{name}: a {found['kind']} of kserve")


if __name__ == "__main__":
    main()
