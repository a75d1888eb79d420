"""`lastgood events` and `check`: the catalogue of records, and a look at a config without starting anything."""

import json
from typing import Annotated

import typer


def events(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a record.")] = False,
) -> None:
    """Print every record that a supervisor writes.

    Its name, level, meaning and fields.
    """
    from supervisor.record_schema import schema
    from supervisor.records import CATALOGUE

    if as_schema:
        typer.echo(json.dumps(schema(), indent=1))
        return
    if as_json:
        plain = {n: {"level": k.level, "meaning": k.meaning, "fields": dict(k.fields)} for n, k in CATALOGUE.items()}
        typer.echo(json.dumps(plain, indent=1))
        return
    for name, kind in CATALOGUE.items():
        typer.echo(f"{name} ({kind.level}): {kind.meaning}")
        for field, meaning in kind.fields.items():
            typer.echo(f"    {field}: {meaning}")


def check(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A run's YAML file.")],
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="K=V", help="Override a setting.")] = None,
) -> None:
    """Check a run's settings without starting anything. Exit 0 when `run` would accept them, else 2."""
    from supervisor.cli.run import read_settings
    from supervisor.settings import inert

    chosen = read_settings([config], sets or [], None, None, None)
    for key in inert(chosen):
        typer.echo(f"{config}: {key}: accepted, but this version does not act on it yet", err=True)
    typer.echo(f"{config}: {chosen.run.name}: fine; preset {chosen.preset_name}, resume {chosen.resume}")
