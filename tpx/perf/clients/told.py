"""What is told of the words that go between this client and a server, for whoever asked for every step."""

from tpx.protocol.tensors import Buffer

MOST_CHARACTERS = 2000


def brief(words: Buffer | str) -> str:
    """On one line, and no longer than a person reads."""
    text = words if isinstance(words, str) else bytes(words[:MOST_CHARACTERS]).decode("utf-8", "replace")
    text = " ".join(text.split())
    return text if len(words) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}... ({len(words)} in all)"
