"""Parameters of models, of execution accelerators and of --backend-config: words, read as numbers and
switches, and a warning for those that have no effect."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tpx.errors import ConfigError
from tpx.options import FALSE_WORDS, TRUE_WORDS, nearest
from tpx.protocol.messages import ModelConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenParameters:
    """Words by key."""

    where: str
    """The model or the option that has them, for messages."""
    words: Mapping[str, str]

    @classmethod
    def of_model(cls, config: ModelConfig) -> "GivenParameters":
        """Return those of a ModelConfig."""
        words = {key: value.string_value for key, value in config.parameters.items()}
        return cls(where=f"model '{config.name}'", words=words)

    @classmethod
    def of_backend(cls, backend: str, settings: Mapping[str, str]) -> "GivenParameters":
        """Return those that --backend-config has for a backend."""
        return cls(where=f"--backend-config {backend}", words=settings)

    def wrong(self, key: str, expected: str) -> ConfigError:
        """Return the error of a parameter that is not as expected."""
        return ConfigError(f"parameter '{key}' of {self.where} must be {expected}, got '{self.words[key]}'")

    def whole(self, key: str) -> int:
        """Return a whole number, 0 where it is not given. Raises ConfigError."""
        text = self.words.get(key) or "0"
        if not (text.isascii() and text.isdigit()):
            raise self.wrong(key, "a whole number")
        if len(text) > 10 or int(text) >= 2**31:  # what runtimes take
            raise self.wrong(key, "less than 2^31")
        return int(text)

    def maybe(self, key: str) -> bool | None:
        """Return a switch, None where it is not given. Raises ConfigError."""
        text = self.words.get(key)
        if text is None:
            return None
        if text.lower() not in TRUE_WORDS | FALSE_WORDS:
            raise self.wrong(key, "true or false")
        return text.lower() in TRUE_WORDS

    def switch(self, key: str, *, default: bool) -> bool:
        """Return a switch. Raises ConfigError."""
        found = self.maybe(key)
        return default if found is None else found

    def one_of(self, key: str, meanings: Mapping[str, str]) -> str | None:
        """Return what the word means, None where it is not given. Raises ConfigError."""
        text = self.words.get(key)
        if text is not None and text not in meanings:
            raise self.wrong(key, f"one of {', '.join(meanings)}")
        return None if text is None else meanings[text]

    def warn(self, key: str, effect: str, known: Collection[str] = ()) -> None:
        """One line on a key, with the nearest of the known ones; `effect` is what becomes of it."""
        log.warning("parameter '%s' of %s %s%s", key, self.where, effect, nearest(key, known))

    def warn_of_others(self, known: Collection[str], effect: str) -> None:
        """One line for each key that is not known."""
        for key in self.words:
            if key not in known:
                self.warn(key, effect, known)
