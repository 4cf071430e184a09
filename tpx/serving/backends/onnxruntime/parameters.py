"""What `parameters` of a configuration, and of its execution accelerators, say: words, read as numbers and
switches, and a warning for those that nobody reads."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tpx.errors import ConfigError
from tpx.options import nearest
from tpx.protocol.messages import ModelConfig

log = logging.getLogger(__name__)

_TRUE, _FALSE = ("1", "true"), ("0", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Words by key."""

    where: str
    """Whose they are, for messages."""
    words: Mapping[str, str]

    @classmethod
    def of_model(cls, config: ModelConfig) -> "Parameters":
        """Those of a ModelConfig."""
        words = {key: value.string_value for key, value in config.parameters.items()}
        return cls(where=f"model '{config.name}'", words=words)

    def whole(self, key: str) -> int:
        """A whole number; 0 where it is not given. Raises ConfigError."""
        text = self.words.get(key) or "0"
        if not (text.isascii() and text.isdigit()):
            raise ConfigError(f"parameter '{key}' of {self.where} must be a whole number, got '{text}'")
        if len(text) > 10 or int(text) >= 2**31:  # what ONNX Runtime takes
            raise ConfigError(f"parameter '{key}' of {self.where} must be less than 2^31, got '{text}'")
        return int(text)

    def switch(self, key: str, *, default: bool) -> bool:
        """On or off. Raises ConfigError."""
        text = self.words.get(key)
        if text is None:
            return default
        if text.lower() not in (*_TRUE, *_FALSE):
            raise ConfigError(f"parameter '{key}' of {self.where} must be 0 or 1, got '{text}'")
        return text.lower() in _TRUE

    def one_of(self, key: str, meanings: Mapping[str, str]) -> str | None:
        """What the word means, None where it is not given. Raises ConfigError."""
        text = self.words.get(key)
        if text is None:
            return None
        if text not in meanings:
            raise ConfigError(
                f"parameter '{key}' of {self.where} must be one of {', '.join(meanings)}, got '{text}'"
            )
        return meanings[text]

    def warn(self, key: str, effect: str, known: Collection[str] = ()) -> None:
        """One line on a key, with the nearest of the known ones; `effect` is what becomes of it."""
        log.warning("parameter '%s' of %s %s%s", key, self.where, effect, nearest(key, known))

    def warn_of_others(self, known: Collection[str], effect: str) -> None:
        """One line for each key that is not known."""
        for key in self.words:
            if key not in known:
                self.warn(key, effect, known)
