"""Libraries of operators that a configuration names: native code, which becomes part of the server."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpx.errors import ConfigError
from tpx.serving.backends.contract import inside


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """Where those of one version of a model may lie.

    As clients may be allowed to load models with a configuration of their own, that is the model's directory,
    or where the command line says.
    """

    model: str
    directory: Path
    """Of the version."""
    field: str
    """Of the configuration, which names them."""
    backend: str
    key: str
    """Of --backend-config: directories, with colons between them, that may hold libraries as well."""
    settings: Mapping[str, str]

    def find(self, name: str) -> Path:
        """In the version's directory, in the model's, or in those that are allowed. Raises ConfigError."""
        allowed = [Path(place) for place in self.settings.get(self.key, "").split(":") if place]
        given = Path(name)
        for place in allowed:
            if (
                given.is_absolute()
                and given.is_relative_to(place)
                and ".." not in given.parts
                and given.is_file()
            ):
                return given
        if given.is_absolute():
            raise ConfigError(
                f"{self.field} '{name}' of model '{self.model}' is outside of the model's directory: put it "
                f"there, or start with --backend-config={self.backend},{self.key}={given.parent}"
            )
        places = [
            inside(place, name, self.field) for place in (self.directory, self.directory.parent, *allowed)
        ]
        for place in places:
            if place.is_file():
                return place
        raise ConfigError(
            f"model '{self.model}' has no library of operators '{name}' ({self.field}); looked for "
            f"{', '.join(map(str, places))}"
        )
