"""Numbers, times and lengths of time as a page shows them. Pure."""

from datetime import UTC, datetime

from supervisor.cli.text import span


def seconds_text(seconds: float) -> str:
    """A length of time with the digits that matter."""
    if abs(seconds) < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    if abs(seconds) < 9.995:
        return f"{seconds:.2f} s"
    return f"{seconds:.1f} s" if seconds < 99.95 else span(seconds)


def moment_text(at: float) -> str:
    """A moment, in UTC."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "at no time that there is"


def iso_text(at: float) -> str:
    """A moment as ISO 8601 has it, in UTC, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def count_text(count: int, one: str, more: str | None = None) -> str:
    """A number of things."""
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"
