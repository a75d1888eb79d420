"""Settings from a YAML file and from `a.b=value` overrides; whatever is wrong with them is told in one line."""

import copy
import reprlib
from collections.abc import Sequence
from typing import Any, get_args

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from supervisor.errors import UsageError, nearest
from supervisor.settings import Settings

MESSAGE_CHARACTERS_MAX = 2000
FILE_BYTES_MAX = 1 << 20
OVERRIDE_CHARACTERS_MAX = 200  # quoted back; the reason must still be seen

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2


def load(path: str | None, overrides: list[str], base: dict[str, Any] | None = None) -> Settings:
    """Settings from a YAML file, or from `base` without one, with `a.b=value` overrides on top.

    Raises UsageError, in one line that names the file, the key and the cure.
    """
    where = path or "command line"
    tree = _read(path) if path is not None else copy.deepcopy(base or {})
    for override in overrides:
        _override(tree, override)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise _refusal(f"{where}: {_first_problem(error.errors(include_url=False))}") from None


def _refusal(text: str) -> UsageError:
    """The error in one line, whatever it quotes: what would end a line or steer a terminal is shown as an escape."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return UsageError(shown if len(shown) <= MESSAGE_CHARACTERS_MAX else shown[:MESSAGE_CHARACTERS_MAX] + "…")


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        text = "" if len(data) > FILE_BYTES_MAX else data.decode("utf-8")
    except FileNotFoundError:
        raise _refusal(f"{path}: there is no such file; give the path of a run's YAML file") from None
    except PermissionError:
        raise _refusal(f"{path}: permission denied; give this user read permission") from None
    except (OSError, UnicodeError) as error:
        raise _refusal(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}; give a run's YAML file in UTF-8"
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise _refusal(f"{path}: it is larger than {FILE_BYTES_MAX:,} bytes; give a run's YAML file")
    try:
        tree = _parsed(text, ())
    except (yaml.YAMLError, RecursionError) as error:
        raise _refusal(f"{path}: {_yaml_problem(error)}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        kind = "a text" if isinstance(tree, str) else "a list" if isinstance(tree, list) else "one value"
        raise _refusal(f"{path}: it holds {kind}, not sections such as `run:` and `trainer:`; give a run's YAML file")
    return tree


class _Loader(yaml.SafeLoader):
    """YAML in which no key stands twice, since of two `trainer:` sections one would not count; with places in its errors."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:  # 2024-13-45, !!bool maybe, !!timestamp x
            kind = node.tag.rpartition(":")[2]
            problem = f"{_SHORT.repr(node.value)} is no {kind}; put it in quotes if it is meant as text"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen and key.value != "<<":
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} is there twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return node


def _parsed(text: str, path: Sequence[str]) -> Any:
    """The value that a text of YAML stands for below `path`. Raises YAMLError and RecursionError."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else loader.construct_document(_as_written(node, tuple(path)))
    finally:
        loader.dispose()


_WORDS = (("trainer", "command"), ("trainer", "pre_start"), ("trainer", "env"))
_READ_AS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int", "timestamp"))


def _as_written(node: yaml.Node, path: tuple[str, ...]) -> yaml.Node:
    """The node, with words of the command and variables as they were written: `10:00:00` is no 36000 and `1.10` no 1.1."""
    if isinstance(node, yaml.ScalarNode):
        if path[:-1] in _WORDS and node.tag in _READ_AS:
            return yaml.ScalarNode("tag:yaml.org,2002:str", node.value, node.start_mark, node.end_mark)
    elif isinstance(node, yaml.SequenceNode):
        if path in _WORDS:
            node.value = [_as_written(word, (*path, "")) for word in node.value]
    elif isinstance(node, yaml.MappingNode) and len(path) <= 2:
        node.value = [(key, _as_written(value, (*path, str(key.value)))) for key, value in node.value]
    return node


def _yaml_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    problem = getattr(error, "problem", None) or "not YAML"
    if isinstance(error, RecursionError):
        problem = "it is nested too deeply"
    elif isinstance(error, yaml.reader.ReaderError):
        problem = f"character {error.position + 1} cannot stand in YAML"
    return f"{place}{problem}; mend the YAML there"


def _override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *parents, last = path = key.split(".")
    option = (
        f"--set {override if len(override) < OVERRIDE_CHARACTERS_MAX else override[:OVERRIDE_CHARACTERS_MAX] + '…'}"
    )
    if not equals or not all(path):
        raise _refusal(f"{option}: write it as a.b=value, for example --set run.final_step=2000")
    try:
        value = _parsed(text, path)
    except (yaml.YAMLError, RecursionError) as error:
        raise _refusal(f"{option}: {_yaml_problem(error)}") from None
    for parent in parents:
        if tree.get(parent) is None:
            tree[parent] = {}
        inner = tree[parent]
        if not isinstance(inner, dict):
            raise _refusal(f"{option}: {parent} is not a section")
        tree = inner
    tree[last] = value


def _first_problem(problems: list[ErrorDetails]) -> str:
    """The first problem as `key: reason`; how many more there are is said too."""
    first = problems[0]
    path = [str(part) for part in first["loc"] if part != "[key]"]
    match first["type"]:
        case "extra_forbidden":
            text = f"there is no such key{nearest(path[-1], _siblings(path[:-1]))}"
        case "value_error":
            text = str(first["ctx"]["error"])
        case "model_type":
            text = f"it should be a section with keys of its own{_but_found(path, first['input'])}"
        case "string_type" | "invalid_key":
            text = f"{_lower(first['msg'])}{_but_found(path, first['input'])}; put it in quotes if it is meant as text"
        case _:
            text = f"{_lower(first['msg'])}{_but_found(path, first['input'])}; write it so"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{': '.join(filter(None, ('.'.join(path), text)))}{more}"


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _but_found(path: list[str], value: Any) -> str:
    """What was there instead. Not of the environment and of notifications, whose values are often secrets."""
    if path[:1] == ["notify"] or path in (["trainer"], ["trainer", "env"], ["trainer", "env", *path[2:]]):
        return ""
    try:
        return f", not {_SHORT.repr(value)}"
    except ValueError:
        return ", not a number of that length"  # which Python refuses to write


def _siblings(path: list[str]) -> list[str]:
    model: Any = Settings
    for part in (one for one in path if not one.isdigit()):  # an item of a list has the keys that all have
        field = model.model_fields.get(part)
        model = (
            next((a for a in (field.annotation, *get_args(field.annotation)) if hasattr(a, "model_fields")), None)
            if field
            else None
        )
        if model is None:
            return []
    return list(model.model_fields)
