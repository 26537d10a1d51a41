from __future__ import annotations

import base64
from html.parser import HTMLParser

from tidegate.report import html
from tidegate.report.tables import Column, Table, percent

PNG = b"\x89PNG\r\n\x1a\n-light"
DARK = b"\x89PNG\r\n\x1a\n-dark"
TABLE = Table(
    "figures <1>",
    [Column("name", "name", number=False), Column("share", "a & b", percent)],
    [{"name": "<script>alert(1)</script>", "share": 0.25}],
    "see https://example.com",
)


class Reader(HTMLParser):
    """Collects what a page refers to, and checks that every opened tag is closed."""

    VOID = ("meta", "img", "source")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self._open.append(tag)
        for name, value in attrs:
            if name in ("src", "srcset", "href", "action", "data", "poster", "background"):
                self.references.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page() -> str:
    return html.page(
        "a < b",
        [
            html.Text("first & foremost: 25 %", lead=True),
            html.Heading("<h1>"),
            html.Code("x < y\n  and z"),
            html.Picture(PNG, 'a "picture"', DARK),
            html.Picture(PNG, "another"),
            TABLE,
            html.Folded(TABLE),
        ],
    )


def test_the_page_is_whole_and_refers_to_nothing_outside() -> None:
    text = page()
    reader = Reader(text)
    assert len(reader.references) == 3
    assert all(reference.startswith("data:image/png;base64,") for reference in reader.references)
    assert not {"script", "link", "iframe", "object", "a"} & set(reader.tags)
    assert "url(" not in text
    assert "@import" not in text


def test_pictures_come_back_as_they_were() -> None:
    first, second, third = (
        base64.b64decode(reference.partition(",")[2]) for reference in Reader(page()).references
    )
    assert (first, second, third) == (DARK, PNG, PNG)


def test_what_is_given_is_shown_and_never_taken_as_markup() -> None:
    reader = Reader(page())
    for text in ("a < b", "first & foremost: 25\N{NO-BREAK SPACE}%", "<h1>", "x < y\n  and z"):
        assert text in reader.text
    assert reader.text.count("<script>alert(1)</script>") == 2
    assert reader.text.count("25.0\N{NO-BREAK SPACE}%") == 2
    assert reader.tags.count("h1") == 1


def test_the_page_is_made_for_phones_and_dark_screens() -> None:
    text = page()
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text
