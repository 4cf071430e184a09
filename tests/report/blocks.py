"""The blocks of a document."""

from collections.abc import Iterator, Sequence

from tpx.report.document import Block, Details, Document, Group


def blocks_of(document: Document) -> Iterator[Block]:
    """Every block, parents before their children."""
    for section in document.sections:
        yield from _nested(section.blocks)


def _nested(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Group | Details):
            yield from _nested(block.blocks)
