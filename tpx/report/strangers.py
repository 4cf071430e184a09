"""Text from strangers: messages of servers, names of models, saved runs. On a terminal, control characters
could hide or change what else is printed, and directional ones its order.
"""

import textwrap

_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_DIRECTIONS = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_SEPARATORS = [0x2028, 0x2029, 0xFEFF]
_ESCAPED = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (*_CONTROLS, *_DIRECTIONS, *_SEPARATORS)
    if chr(code) not in "\t\n"
}


def harmless(text: str) -> str:
    """Return a text with its control characters escaped, as in \\x1b, except tabs and line ends."""
    return text if text.isprintable() else text.translate(_ESCAPED)


def wrapped(text: str, width: int | None) -> str:
    """Wrap a text between words if a width is given. Control characters are escaped."""
    text = harmless(text)
    if width is None:
        return text
    return textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
