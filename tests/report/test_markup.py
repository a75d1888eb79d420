"""Text from outside can be no markup, wherever it stands."""

import json
from html.parser import HTMLParser
from typing import Any

import pytest

from supervisor.report.markup import Html, chart_text, escaped, joined, json_number, script_json, tag
from tests.report.made import HOSTILE


class Seen(HTMLParser):
    """What a reader of HTML sees."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Text."""
        self.text += data


def test_text_is_the_same_text_for_whoever_reads_the_page() -> None:
    """In an element and in an attribute, with nothing in it taken for markup."""
    seen = Seen(tag("p", HOSTILE, title=HOSTILE))

    assert [("p", {"title": HOSTILE})] == seen.tags
    assert HOSTILE == seen.text


def test_what_is_html_already_is_not_escaped_again() -> None:
    """Or nothing could hold anything."""
    assert "<p><b>a &lt; b</b></p>" == tag("p", tag("b", "a < b"))
    assert "<b>x</b>, y" == joined([Html("<b>x</b>"), "y"], ", ")


def test_attributes_that_do_not_apply_are_left_out() -> None:
    """None and False say that it is not there, True that it has no value."""
    assert '<td class="a" data-label="b" hidden></td>' == tag(
        "td", class_="a", data_label="b", hidden=True, id=None, x=False
    )


def test_what_would_steer_a_reader_is_shown_as_an_escape() -> None:
    """A line end, a control character, a change of the direction of writing, and a byte that is no UTF-8."""
    assert r"a\nb\x1b\u202e\udcff" == escaped("a\nb\x1b\u202e\udcff")


def test_json_in_a_script_cannot_end_it() -> None:
    """No character that begins markup is left, and the value is the same when it is read."""
    text = script_json({"name": HOSTILE, "\u2028": [1, None]})

    assert not set("<>&\u2028") & set(text)
    assert {"name": HOSTILE, "\u2028": [1, None]} == json.loads(text)


def test_a_number_that_json_has_not_is_refused_before_it_is_written() -> None:
    """A page that no browser can read must not be written."""
    with pytest.raises(ValueError, match="JSON"):
        script_json(float("nan"))
    assert ["inf", 0.5, None] == [json_number(one) for one in (float("inf"), 0.5, None)]


def test_a_chart_shows_text_as_text() -> None:
    """Charts take links and line breaks in their labels, but not from outside."""
    assert "&lt;a href='x'&gt;&amp;lt;" == chart_text("<a href='x'>&lt;")
