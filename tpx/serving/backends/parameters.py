"""Parameters of models, of execution accelerators and of --backend-config: parsing, and warnings for
those without effect.

Also lookup of custom operator libraries, which are native code that runs inside the server, and
expansion of instance groups.
"""

import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from tpx.errors import ConfigError
from tpx.options import FALSE_WORDS, TRUE_WORDS, nearest
from tpx.processors import schedulable_processors
from tpx.protocol.messages import ModelConfig, ModelInstanceGroup
from tpx.serving.backends.contract import GLOBAL, InstanceSpec, ModelFiles, Needs, inside

D = TypeVar("D", bool, None)
log = logging.getLogger(__name__)

_OF_CLIENTS = ("shapes",)
"""Parameters that are for others than backends: what load generators send."""
MAX_INSTANCES = 1024


class GivenParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters as strings, by key."""

    where: str
    """Model or option that sets them, for messages."""
    values: Mapping[str, str]
    field: str = ""
    """Path of the parameters in the configuration; empty for those of an option."""

    @classmethod
    def of_model(cls, config: ModelConfig) -> "GivenParameters":
        """Return the parameters of a ModelConfig, without those for load generators."""
        parameters = config.parameters.items()
        values = {key: value.string_value for key, value in parameters if key not in _OF_CLIENTS}
        return cls(where=f"model '{config.name}'", values=values, field="parameters")

    @classmethod
    def of_backend(cls, backend: str, settings: Mapping[str, str]) -> "GivenParameters":
        """Return the --backend-config settings of a backend."""
        return cls(where=f"--backend-config {backend}", values=settings)

    def wrong(self, key: str, expected: str) -> ConfigError:
        """Return the error for a parameter with an invalid value."""
        return self.refuse(
            key, f"parameter '{key}' of {self.where} must be {expected}, got '{self.values[key]}'"
        )

    def refuse(self, key: str, message: str) -> ConfigError:
        """Return an error that is located at a parameter."""
        return ConfigError(message, field=f"{self.field}[{key}]" if self.field else "")

    def whole(self, key: str, *, least: int = 0, most: int = 2**31 - 1, default: int = 0) -> int:
        """Return a whole number within limits, `default` if not set. Raises ConfigError.

        Runtimes take 32-bit signed integers.
        """
        text = self.values.get(key)
        if not text:
            return default
        if not re.fullmatch("[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return int(text)

    def number(self, key: str, expected: str, *, most: float, default: float = 0.0) -> float:
        """Return a number from 0 to `most`, `default` if not set. Raises ConfigError that says `expected`."""
        text = self.values.get(key)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= most:
            raise self.wrong(key, expected)
        return value

    def threads(self, key: str, *, least: int = 0) -> int:
        """Return a number of threads, 0 if not set. Raises ConfigError.

        The limit exceeds what any model can use: runtimes start all threads while they load, and would take
        minutes for 100,000.
        """
        return self.whole(key, least=least, most=max(1024, 4 * schedulable_processors()))

    def switch(self, key: str, *, default: D) -> bool | D:
        """Return a boolean, or `default` if not set. Raises ConfigError."""
        text = self.values.get(key)
        if text is None:
            return default
        if text.lower() not in TRUE_WORDS | FALSE_WORDS:
            raise self.wrong(key, "true or false")
        return text.lower() in TRUE_WORDS

    def one_of(self, key: str, meanings: Mapping[str, str]) -> str | None:
        """Return the meaning of the value, None if not set. Raises ConfigError."""
        text = self.values.get(key)
        if text is not None and text not in meanings:
            raise self.wrong(key, f"one of {', '.join(meanings)}")
        return None if text is None else meanings[text]

    def warn(self, key: str, effect: str, known: Collection[str] = ()) -> None:
        """Log a warning about a key, with the most similar known one; `effect` says what happens to it."""
        log.warning("parameter '%s' of %s %s%s", key, self.where, effect, nearest(key, known))

    def warn_of_others(self, known: Collection[str], effect: str) -> None:
        """Log a warning for each key that is not known."""
        for key in self.values:
            if key not in known:
                self.warn(key, effect, known)


def find_library(files: ModelFiles, name: str, *, field: str, option: str) -> Path:
    """Return the path of a library of custom operators that the configuration's `field` names.

    Clients may be allowed to load models with their own configuration, so a library must be in the directory
    of the version or model, or in one that the command line allows: `option` is the backend and key of
    --backend-config with such directories, separated by colons. Raises ConfigError.
    """
    allowed = [Path(place) for place in files.settings.get(option.partition(",")[2], "").split(":") if place]
    given = Path(name)
    if given.is_absolute():
        below = ".." not in given.parts and any(given.is_relative_to(place) for place in allowed)
        if below and given.is_file():
            return given
        raise ConfigError(
            f"{field} '{name}' of model '{files.model_name}' is outside of the model's directory: put it "
            f"there, or start with --backend-config={option}={given.parent}",
            field=field,
        )
    places = [inside(place, name, field) for place in (files.directory, files.directory.parent, *allowed)]
    for place in places:
        if place.is_file():
            return place
    raise ConfigError(
        f"model '{files.model_name}' has no library of operators '{name}' ({field}); looked for "
        f"{', '.join(map(str, places))}",
        field=field,
    )


def instance_specs(config: ModelConfig) -> list[InstanceSpec]:
    """List the instances of a normalized ModelConfig; a GPU group has `count` per GPU. Raises ConfigError."""
    groups = [group for group in config.instance_group if not group.passive]
    total = sum(group.count * max(1, len(group.gpus)) for group in groups)
    if total < 1:
        raise ConfigError(
            f"model '{config.name}' has no instance that is not passive: it could never compute",
            field="instance_group",
        )
    if total > MAX_INSTANCES:
        raise ConfigError(
            f"model '{config.name}' asks for {total} instances, more than {MAX_INSTANCES}",
            field="instance_group",
        )
    return [
        InstanceSpec(
            name=f"{group.name}_{index}",
            kind=ModelInstanceGroup.Kind.Name(group.kind),
            device_id=device,
            needs=Needs(
                resources={
                    (each.name, GLOBAL if getattr(each, "global") else device): each.count
                    for each in group.rate_limiter.resources
                },
                priority=group.rate_limiter.priority or 1,
            ),
            profiles=tuple(group.profile),
        )
        for group in groups
        for device in list(group.gpus) or [0]
        for index in range(group.count)
    ]
