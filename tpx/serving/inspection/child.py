"""A look at one part, in a process of its own: what it loads may crash or hang, and does so alone."""

import json
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from tpx.errors import TpxError
from tpx.serving.backends.contract import Describes, Description
from tpx.serving.backends.table import KNOWN, backend
from tpx.serving.extensions import foreign
from tpx.serving.inspection.features import FEATURES


def main(words: Sequence[str]) -> None:
    """Describe the part `words`, its kind and name, as JSON into the file descriptor that is the third."""
    kind, name, answer = words
    warnings.simplefilter("ignore")
    try:
        with foreign():
            told = _backend(name) if kind == "backend" else FEATURES[name].describe()
        found: dict[str, object] = asdict(told)
    except TpxError as exc:
        found = {"failed": exc.message}
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
