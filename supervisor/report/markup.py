"""HTML and JSON that text from outside cannot break out of: whatever is not marked as HTML is escaped. Pure."""

import html
import json
import math
from collections.abc import Iterable
from typing import Any

from supervisor.cli.text import printable

ALONE = frozenset({"meta", "link", "br"})
"""Elements without an end."""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(text: object) -> Html:
    """Text as HTML shows it, in an element as in an attribute. What is HTML already stays as it is."""
    return text if isinstance(text, Html) else Html(html.escape(printable(str(text))))


def joined(parts: Iterable[object], between: str = "") -> Html:
    """One after the other, each escaped."""
    return Html(escaped(between).join(escaped(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. `class_` is the attribute `class`, `data_label` is `data-label`; one that is None or False is left out."""
    words = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            attribute = key.rstrip("_").replace("_", "-")
            words.append(attribute if value is True else f'{attribute}="{escaped(value)}"')
    end = "" if name in ALONE else f"</{name}>"
    return Html(f"<{' '.join(words)}>{joined(children)}{end}")


def script_json(value: Any) -> Html:
    """A value as JSON that can stand in a script element: nothing in it can end that, or begin a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Html(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def chart_text(text: str) -> str:
    """Text as a chart shows it, which takes some HTML in its labels."""
    return html.escape(printable(text), quote=False)


def json_number(value: float | None) -> float | str | None:
    """A number as JSON can hold it: one that is not finite in words."""
    return value if value is None or math.isfinite(value) else str(value)
