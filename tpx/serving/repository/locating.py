"""The place in a model's config.pbtxt that an error is about, as far as its words tell."""

import re

from tpx.errors import ConfigError
from tpx.protocol import config_text
from tpx.serving.repository.layout import ModelSource

_PLACED = re.compile(r"\.pbtxt\b")


def located(error: ConfigError, source: ModelSource) -> ConfigError:
    """The same error with file, line and field; as it is where the file does not say what it complains of."""
    if source.override is not None or source.file is not None or _PLACED.search(error.message):
        return error
    path = source.config_path
    try:
        part = config_text.locate(path.read_text(encoding="utf-8"), error.message)
    except (OSError, UnicodeDecodeError):
        return error
    if part is None:
        return error
    inside = path.relative_to(source.directory)
    return ConfigError(f"{error.message} ({source.place}/{inside}:{part.line}: {part.path})")
