"""A look at one part, in a process of its own: what it loads may crash or hang, and does so alone."""

import json
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from tpx.errors import TpxError
from tpx.serving.backends.base import Describes, Description
from tpx.serving.backends.table import KNOWN, backend
from tpx.serving.inspection.features import FEATURES


def main(words: Sequence[str]) -> None:
    """Describe the part `words`, its kind and name, as JSON into the file descriptor that is the third."""
    kind, name, answer = words
    warnings.simplefilter("ignore")
    try:
        found: dict[str, object] = asdict(_backend(name) if kind == "backend" else FEATURES[name].describe())
    except TpxError as exc:
        found = {"failed": exc.message}
    except BaseException as exc:  # noqa: BLE001 (whatever it raises is the answer)
        found = {"failed": f"{type(exc).__name__}: {exc}"}
    with os.fdopen(int(answer), "w", encoding="utf-8") as file:
        json.dump(found, file)
    os._exit(0)  # threads and destructors of what was loaded have nothing to add


def _backend(name: str) -> Description:
    found = backend(name)
    if isinstance(found, Describes):
        return found.describe()
    package = KNOWN[name].package if name in KNOWN else ""
    try:
        told = version(package) if package else ""
    except PackageNotFoundError:
        told = str(getattr(sys.modules.get(package), "__version__", ""))
    return Description(version=told)
