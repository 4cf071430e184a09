"""Texts of generated tokens: pieces that can be sent, without stop texts and halves of characters."""

from collections.abc import Callable, Sequence

_INCOMPLETE = "\ufffd"
_MOST_OPEN = 8
"""Tokens that one character may have; more are no text."""


class TokenTexts:
    """Texts of single tokens, as they continue a text. Decoding takes long, so they are kept."""

    def __init__(self, decode: Callable[[Sequence[int]], str], anchor: Sequence[int]) -> None:
        """`anchor` are tokens of a text to continue: tokenizers may strip the space before the first word."""
        self._decode = decode
        self._anchor = list(anchor)
        self._skip = len(decode(self._anchor))
        self._known: dict[int, str] = {}

    def of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens that continue a text; incomplete characters are U+FFFD."""
        if len(tokens) != 1:
            return self._decode([*self._anchor, *tokens])[self._skip :]
        text = self._known.get(tokens[0])
        if text is None:
            text = self._known[tokens[0]] = self._decode([*self._anchor, *tokens])[self._skip :]
        return text


class TextStream:
    """The text of one request."""

    def __init__(self, texts: TokenTexts, stops: Sequence[str]) -> None:
        self._texts = texts
        self._stops = stops
        self._open: list[int] = []
        self._held = ""
        """Text that may be the beginning of a stop text."""
        self.stopped = False

    def add(self, tokens: Sequence[int]) -> str:
        """Return the text that tokens add and that can be sent."""
        text = ""
        for token in tokens:
            self._open.append(token)
            piece = self._texts.of(self._open)
            if not piece.endswith(_INCOMPLETE) or len(self._open) >= _MOST_OPEN:
                text += piece
                self._open.clear()
        return self._without_stops(text) if self._stops else text

    def end(self) -> str:
        """Return what is left at the end."""
        rest = self._held + (self._texts.of(self._open) if self._open else "")
        self._held = ""
        return "" if self.stopped else rest

    def _without_stops(self, text: str) -> str:
        text = self._held + text
        self._held = ""
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            return text[: min(found)]
        for size in range(min(len(text), max(map(len, self._stops)) - 1), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                self._held = text[-size:]
                return text[:-size]
        return text
