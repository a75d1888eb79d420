"""Every setting with its default and one line of why, as YAML: `python -m supervisor.reference > config/reference.yaml`."""

from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from supervisor.settings import KeepSettings, Settings

HEAD = """\
# Every key of a run's config with its default. Generated: python -m supervisor.reference > config/reference.yaml
# Keys marked (not yet) are accepted, and named in the first record when set; this version does not act on them.
"""


def reference() -> str:
    """The reference as text."""
    return HEAD + "\n".join(_lines(Settings(**_REQUIRED), 0)) + "\n"


_REQUIRED: dict[str, Any] = {
    "trainer": {"command": ["python", "train.py"], "resume": "never"},
    "checkpoints": {"dir": "out/run"},
}
"""Keys without a usable default; the reference shows examples for them, and null for `resume`."""


def _lines(part: BaseModel, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if name == "keep":
            yield f"{indent}{name}:  # {field.description}"
            yield from _lines(KeepSettings(), depth + 1)
        elif isinstance(value, BaseModel):
            yield f"\n{name}:  # {type(value).__doc__}"
            yield from _lines(value, depth + 1)
        else:
            yield f"{indent}{name}: {_shown(name, value)}  # {_meaning(field)}"


def _shown(name: str, value: Any) -> str:
    plain = None if name == "resume" else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1000).replace("\n...", "").strip()


def _meaning(field: FieldInfo) -> str:
    later = " (not yet)" if field.json_schema_extra else ""
    return f"{field.description}{later}"


if __name__ == "__main__":
    print(reference(), end="")  # noqa: T201 - this module is a command
