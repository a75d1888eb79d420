"""Settings from a YAML file and from `a.b=value` overrides; whatever is wrong with them is told in one line."""

from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from supervisor.errors import UsageError, nearest
from supervisor.settings import Settings


def load(path: str | None, overrides: list[str], base: dict[str, Any] | None = None) -> Settings:
    """Settings from a YAML file, or from `base` without one, with `a.b=value` overrides on top.

    Raises UsageError, in one line that names the file, the key and the cure.
    """
    where = path or "command line"
    tree = _read(path) if path is not None else (base or {})
    for override in overrides:
        _override(tree, override)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise UsageError(f"{where}: {_one_line(error)}") from None


def _read(path: str) -> dict[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file; give the path of a run's YAML file") from None
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: {_yaml_problem(error)}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UsageError(f"{path}: it holds a {type(tree).__name__}, not sections such as `run:` and `trainer:`")
    return tree


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "not YAML"
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return f"{place}{problem}; mend the YAML there".replace("\n", " ")


def _override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise UsageError(f"--set {override}: write it as a.b=value, for example --set run.final_step=2000")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {override}: {_yaml_problem(error)}") from None
    *parents, last = key.split(".")
    for parent in parents:
        inner = tree.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise UsageError(f"--set {override}: {parent} is not a section")
        tree = inner
    tree[last] = value


def _one_line(error: ValidationError) -> str:
    """The first problem as `key: reason`; how many more there are is said too."""
    problems = error.errors()
    first = problems[0]
    path = [str(part) for part in first["loc"] if not str(part).startswith(("function-", "list[", "constrained"))]
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        text = f"{key}: there is no such key{nearest(path[-1], _siblings(path[:-1]))}"
    elif first["type"] == "value_error":
        text = f"{key}: {first['ctx']['error']}" if key else str(first["ctx"]["error"])
    else:
        text = f"{key}: {first['msg'][0].lower()}{first['msg'][1:]}, not {first['input']!r}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return (text + more).replace("\n", " ")


def _siblings(path: list[str]) -> list[str]:
    model: Any = Settings
    for part in path:
        field = model.model_fields.get(part)
        model = (
            next((a for a in (field.annotation, *get_args(field.annotation)) if hasattr(a, "model_fields")), None)
            if field
            else None
        )
        if model is None:
            return []
    return list(model.model_fields)
