"""Texts of generated tokens: pieces that can be sent, without stop texts and halves of characters."""

from collections.abc import Callable, Sequence

_INCOMPLETE = "\ufffd"
_MOST_OPEN = 8
"""Tokens that one character may have; more are no text."""
_AT_ONCE = 8192
"""Tokens decoded together."""
Tokens = Sequence[Sequence[int]]
Texts = Sequence[str]


class TokenTexts:
    """Texts of single tokens, as they continue a text."""

    def __init__(self, decode: Callable[[Tokens], Texts], anchor: Sequence[int], size: int) -> None:
        """Decode all `size` tokens of a vocabulary, because decoding one takes as long as hundreds at once.

        `anchor` are tokens of a text to continue: tokenizers may strip the space before the first word.
        """
        self._decode = decode
        self._anchor = list(anchor)
        self._skip = len(decode([self._anchor])[0])
        self._known: list[str] = []
        for start in range(0, size, _AT_ONCE):
            tokens = range(start, min(start + _AT_ONCE, size))
            texts = decode([[*self._anchor, token] for token in tokens])
            self._known += [text[self._skip :] for text in texts]

    def of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens that continue a text; incomplete characters are U+FFFD."""
        if len(tokens) == 1 and tokens[0] < len(self._known):
            return self._known[tokens[0]]
        return self._decode([[*self._anchor, *tokens]])[0][self._skip :]


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
