"""Hostile text is text, wherever it lands; what is drawn is well formed."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.html import ACCENT, Html, bar_chart, element, escape, histogram, join, sparkline, table

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</td></table></svg></title><script>",
    "&lt;script&gt; &amp; &#60;",
    "<!-- --><![CDATA[ ]]>",
    "javascript:alert(1)",
    "null \0, bell \a, half \ud83d, escape \x1b[31m, end \uffff",
    "\u202eevil\u202c, multi\nline\ttext",
]
hostile = pytest.mark.parametrize("text", HOSTILE)
any_text = st.text() | st.sampled_from(HOSTILE)
numbers = st.floats() | st.integers() | st.none() | st.just(10**400)


class Reader(HTMLParser):
    """What a browser would see: tags in order with their attributes, and the text between them."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")

    handle_decl = unknown_decl = handle_pi = handle_comment


def possible(text: str) -> str:
    """The text with what no page can hold replaced."""
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


def same(seen: str, text: str) -> bool:
    """Whether a page shows the text; a page does not tell line ends apart."""
    return seen.replace("\r\n", "\n").replace("\r", "\n") == possible(text).replace("\r\n", "\n").replace("\r", "\n")


# Elements -----------------------------------------------------------------------------------------------------


@hostile
def test_text_is_text(text):
    """No tag, attribute or entity of its own; the reader sees the characters that were given."""
    page = Reader(element("p", text))

    assert page.tags == ["p"]
    assert same(page.text, text)


@hostile
def test_attributes_are_text(text):
    """The value ends where it was meant to end."""
    page = Reader(element("p", title=text, class_="x"))

    assert page.tags == ["p"]
    assert [name for name, _ in page.attributes] == ["title", "class"]
    assert same(page.attributes[0][1], text)


@hostile
def test_markup_in_an_attribute_is_text_too(text):
    """Html is markup between tags, not between quotes."""
    page = Reader(element("p", title=Html(text)))

    assert (page.tags, [name for name, _ in page.attributes]) == (["p"], ["title"])


@given(any_text)
def test_any_text_comes_through(text):
    """Whatever the characters, the page can be encoded and shows them."""
    markup = element("p", text, title=text)
    markup.encode("utf-8")
    page = Reader(markup)

    assert page.tags == ["p"]
    assert same(page.text, text)
    assert same(page.attributes[0][1], text)


def test_markup_is_not_escaped_again():
    """Elements nest; a joined string is no longer markup, which is the safe side."""
    inner = element("b", "x")

    assert element("p", inner, " & ", None, 3) == "<p><b>x</b> &amp; 3</p>"
    assert join(inner, "<") == "<b>x</b>&lt;"
    assert escape(inner) is inner
    assert element("p", "" + inner) == "<p>&lt;b&gt;x&lt;/b&gt;</p>"


def test_attributes_are_named_as_in_python():
    """Underscores for hyphens, one at the end for a reserved word; zero is a value, None and False are not."""
    markup = element("td", class_="a", data_row=0, colspan=None, hidden=False, open=True, viewBox="0 0 1 1")

    assert markup == '<td class="a" data-row="0" open="" viewBox="0 0 1 1"></td>'
    assert element("br") == "<br/>"


@pytest.mark.parametrize("tag", ["script", "style", "iframe", "object", "p onclick=x", "p><script", "", "P"])
def test_only_harmless_tags_are_written(tag):
    """A tag is never data, and none can run or load anything."""
    with pytest.raises(ValueError, match="not one of the tags"):
        element(tag)


@pytest.mark.parametrize("name", ["onclick", "onerror_", "on_load", "a b", "a>", 'a"', "", "srcdoc", "é"])
def test_only_harmless_attributes_are_written(name):
    """No events, no documents inside attributes, no names that end the tag."""
    with pytest.raises(ValueError, match="attribute"):
        element("p", **{name: "x"})


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "javascript:'https://a.org#'",
        " javascript:x",
        "JaVaScRiPt:x",
        "data:text/html,x",
        "//evil",
        "file:///etc/passwd",
    ],
)
def test_only_harmless_addresses_are_written(address):
    """A link leads to a page or a place in this one; a picture is in the page itself."""
    with pytest.raises(ValueError, match="not an address"):
        element("a", "x", href=address)
    with pytest.raises(ValueError, match="not an address"):
        element("img", src=address)
    assert "https://a.org/?x=1&amp;y=2" in element("a", "x", href="https://a.org/?x=1&y=2")
    assert 'href="#top"' in element("a", "x", href="#top")
    assert element("img", src="data:image/png;base64,iVBORw0KGgo=").startswith("<img src=")


def test_notebooks_and_templates_take_it_as_it_is():
    """By the names that they ask for."""
    markup = element("b", "x")

    assert markup._repr_html_() == markup.__html__() == "<b>x</b>"
    assert type(str(markup)) is str
    assert isinstance(markup, Html)


# Tables -------------------------------------------------------------------------------------------------------


@hostile
def test_tables_hold_any_text(text):
    """In headers, cells and the caption."""
    page = Reader(table([text, "n"], [[text, 1], [None, 2.5]], caption=text))

    assert page.tags == ["table", "caption", "thead", "tr", "th", "th", "tbody", *["tr", "td", "td"] * 2]
    assert page.text.count(possible(text)) == 3


def test_numbers_stand_to_the_right():
    """Also NumPy's; words and answers stand to the left."""
    row = [1, 2.5, np.int64(3), np.float32(4), "5", True, None]
    sides = re.findall("<td[^>]*text-align:(left|right)", table("abcdefg", [row]))

    assert sides == ["right"] * 4 + ["left"] * 3


def test_a_table_changes_nothing_around_it():
    """Styles are inline, and colours are the page's own or let it shine through."""
    markup = table(["a"], [["b"]])

    assert "<style" not in markup
    assert re.findall(r"(?:color|background)[^;\"]*", markup) == []
    assert re.findall(r"#[0-9a-f]{3,6}", markup) == []


def test_an_empty_table_is_a_table():
    """No rows, no columns."""
    assert Reader(table([], [])).tags == ["table", "thead", "tr", "tbody"]


# Drawings -----------------------------------------------------------------------------------------------------


def drawing(markup: Html) -> list[ElementTree.Element]:
    """The elements of a drawing, which XML must be able to read, and HTML to read the same."""
    root = ElementTree.fromstring(markup)
    elements = list(root.iter())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert Reader(markup).tags == [part.tag.split("}")[1].lower() for part in elements]
    return elements


def tags(markup: Html) -> list[str]:
    return [part.tag.split("}")[1] for part in drawing(markup)]


def coordinates(markup: Html) -> list[float]:
    """Every number that places something."""
    found: list[float] = []
    for part in drawing(markup):
        for name in ("x", "y", "cx", "cy", "width", "height", "points"):
            found += [float(number) for number in re.split("[ ,]", part.get(name, "")) if number]
    return found


@hostile
def test_drawings_hold_any_text(text):
    """In titles and labels."""
    for markup in (
        sparkline([1, 2], title=text),
        histogram([1, 2], [0, 1, 2], title=text),
        bar_chart([text, "b"], [1, 2], title=text),
    ):
        assert set(tags(markup)) <= {"svg", "title", "polyline", "circle", "rect", "text"}
        assert same(drawing(markup)[1].text or "", text)


@given(st.lists(numbers, max_size=12), any_text)
def test_any_numbers_can_be_drawn(values, label):
    """NaN, infinities, None, numbers beyond floats, none at all: well formed, and inside the drawing."""
    for markup in (
        sparkline(values, title=label),
        bar_chart([label] * len(values), values),
        histogram(values[1:], sorted(values, key=lambda x: (x is None or x != x, x or 0))) if values else None,
    ):
        if markup is not None:
            assert all(-1 <= number <= 600 for number in coordinates(markup))


def test_a_sparkline_goes_from_its_lowest_to_its_highest():
    """Left to right, high values above low ones."""
    line = drawing(sparkline([0, 10, 5], width=104, height=24))[1]

    assert line.get("points") == "2,22 52,2 102,12"
    assert line.get("stroke") == ACCENT


def test_a_sparkline_has_gaps_where_there_is_no_number():
    """Two runs are two lines, and a lonely point is a dot."""
    assert tags(sparkline([1, 2, math.nan, 3, 4])) == ["svg", "polyline", "polyline"]
    assert tags(sparkline([1, None, 3, 2])) == ["svg", "circle", "polyline"]


@pytest.mark.parametrize("values", [[5, 5, 5], [0.0, -0.0], [1e308, -1e308]])
def test_a_sparkline_of_equal_or_extreme_values_is_a_line(values):
    """No division by zero, no overflow."""
    assert tags(sparkline(values)) == ["svg", "polyline"]


def test_bars_are_as_long_as_their_values():
    """The largest fills the room; what is negative or no number has no bar, but its value is written."""
    parts = drawing(bar_chart(["a", "b", "c", "d"], [4, 2, -1, math.nan], width=420))
    lengths = [float(part.get("width")) for part in parts if part.tag.endswith("rect")]
    texts = [part.text for part in parts if part.tag.endswith("text")]

    assert lengths == [200, 100, 0, 0]
    assert texts == ["a", "4", "b", "2", "c", "-1", "d", "nan"]


def test_a_bin_of_one_frequent_value_leaves_the_others_visible():
    """However narrow it is: 700 zeros beside 300 other numbers are seven times as high as 100 of those."""
    for above_zero in (5e-324, 1e-9):
        drawn = str(histogram([100, 700, 200], [-1.0, 0.0, above_zero, 2.0], height=114))

        heights = [float(each) for each in re.findall(r'<rect[^>]* height="([\d.]+)"', drawn)]

        assert heights == [14.29, 100.0, 14.29]


def test_histogram_bars_stand_between_their_edges():
    """A bin of twice the width is drawn twice as wide and, with twice the values, as high; the ends are named."""
    parts = drawing(histogram([1, 2], [0, 1, 3], width=300, height=64))
    bars = [(float(part.get("x")), float(part.get("width")), float(part.get("height"))) for part in parts[1:3]]

    assert bars == [(0, 99.5, 50), (100, 199.5, 50)]
    assert [part.text for part in parts[3:]] == ["0", "3"]
    assert [part.text for part in drawing(histogram([1, 2], [0, 1, 3], ends=("few", 9)))[3:]] == ["few", "9"]


def test_long_labels_are_cut():
    """So that they do not run out of the drawing."""
    texts = [part.text for part in drawing(bar_chart(["x" * 1_000], [1234567])) if part.text]

    assert texts == ["x" * 21 + "…", "1,234,567"]


@pytest.mark.parametrize("empty", [sparkline([]), sparkline([math.nan]), bar_chart([], []), histogram([], [1])])
def test_nothing_to_draw_is_said(empty):
    """An empty drawing says so instead of looking broken."""
    assert "no data" in empty
    assert drawing(empty)


@pytest.mark.parametrize("call", [lambda: histogram([1], [1]), lambda: bar_chart(["a"], [])])
def test_numbers_that_do_not_go_together_are_refused(call):
    """Too few edges or labels."""
    with pytest.raises(ValueError, match="1 "):
        call()


def test_arrays_can_be_drawn():
    """NumPy's numbers are numbers."""
    counts, edges = np.histogram(np.arange(100.0), bins=10)

    assert tags(histogram(counts, edges)).count("rect") == 10
    assert tags(sparkline(np.linspace(0, 1, 50, dtype=np.float32))) == ["svg", "polyline"]
    assert "1,000" in bar_chart(["a"], np.array([1000]))


@pytest.mark.parametrize("page", ["#ffffff", "#111111", "#1e1e1e"])
def test_the_accent_is_seen_on_light_and_dark_pages(page):
    """Contrast of at least 3 to 1, which is asked of graphics."""
    lighter, darker = sorted((luminance(ACCENT), luminance(page)), reverse=True)

    assert (lighter + 0.05) / (darker + 0.05) > 3.5


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))
