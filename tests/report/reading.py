"""Reading a page as a browser would, and what it must not have."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from pypdf import PdfReader

VOID = {"meta", "br", "line", "path", "rect", "hr", "img", "link", "input"}


@dataclass
class Reader(HTMLParser):
    """Texts of every table row by table id, ids, texts by tag, and whether every tag was closed in order."""

    rows: dict[str, list[list[str]]] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self._table = ""
        self._row: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids += [values["id"]] if "id" in values else []
        self.urls += [values[name] for name in ("href", "src", "xlink:href") if name in values]
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self._table = values.get("id", "")
            self.rows[self._table] = []
        if tag == "tr":
            self._row = []
        if tag in ("td", "th"):
            self._row.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self._open.pop() == tag, f"{tag} closes something else, line {self.getpos()}"
        self.text += " " if tag in ("td", "th", "p", "li", "span", "pre") else ""
        if tag == "tr" and self._table:
            self.rows[self._table].append([cell.strip() for cell in self._row])

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.text += data
        if self._row and {"td", "th"} & set(self._open):
            self._row[-1] += data

    @property
    def closed(self) -> bool:
        return not self._open


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def pdf_text(path: Path) -> str:
    """Return the text of all pages, as a reader would copy it."""
    return "\n".join(page.extract_text() for page in PdfReader(path).pages)


def pdf_pages(path: Path) -> int:
    """Return the number of pages."""
    return len(PdfReader(path).pages)
