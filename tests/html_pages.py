"""HTML pages as trees of elements."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

VOID = ("base", "br", "input", "link", "meta")


class _Parser(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tree, self.open = ET.TreeBuilder(), []

    def handle_starttag(self, tag, attrs):
        self.tree.start(tag, {name: value or "" for name, value in attrs})
        self.open.append(tag)
        if tag in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.tree.end(tag)

    def handle_data(self, data):
        self.tree.data(data)


def read_page(path):
    """Return the root of a page in a file."""
    return parse_page(path.read_text(encoding="utf-8"))


def parse_page(page):
    """Return the root of a page; each element must be closed, and ids must be unique."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    assert not parser.open
    root = parser.tree.close()
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    return root


def text_of(element):
    return "".join(element.itertext())


def texts(element, path):
    """Return the texts of the elements at a path."""
    return [text_of(each) for each in element.findall(path)]


def rows(element):
    """Return the cells of all rows of the tables in an element."""
    return [[text_of(cell) for cell in row] for row in element.iter("tr")]


def is_self_contained(page):
    """Return whether a page loads no other file; it may link to its own elements."""
    links = [element.get(name) for element in page.iter() for name in ("src", "href", "action")]
    style = "".join(texts(page, ".//style"))
    return all(link in (None, "") or link[0] == "#" for link in links) and "@import" not in style
