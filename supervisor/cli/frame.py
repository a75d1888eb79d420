"""One frame of `lastgood watch`: a view as lines of text that fit a screen. Pure."""

import json
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from supervisor.cli.accounting import in_words
from supervisor.cli.look import Row, View, is_number
from supervisor.cli.text import bytes_text, printable, shown, span

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN_BLOCKS = "_.-=+*%#"  # where the terminal has no others
CURVE_ROWS_MAX = 6
LATE_SECONDS = 10.0  # a supervisor writes its status twice a second
COLOURS = {
    "healthy": "green",
    "intact": "green",
    "unproven": "yellow",
    "running": "green",
    "starting": "green",
    "completed": "green",
    "failed": "bold red",
    "info": "",
    "warning": "yellow",
    "error": "bold red",
}
_BAD = frozenset({"truncated", "corrupt", "incomplete", "poisoned", "incompatible", "unreadable"})
_EVERY_RECORD = frozenset({"event", "level", "timestamp", "run", "run_id", "incarnation", "seq"})
_HIDDEN = frozenset({"seconds", "bytes", "last_lines", "rejected", "ignored_settings", "directory", "standby"})
_REASONS = frozenset({"reason"})  # of what is well


def frame(view: View, width: int, height: int, ascii_only: bool = False, hint: str = "") -> list[Text]:
    """At most `height` lines of at most `width` columns; `hint` stands at the right of the first, if there is room."""
    head = _head(view)
    room = width - head[0].cell_len - len(hint)
    if hint and room > 1:
        head[0].append(" " * room + hint, style="dim")
    spare = height - len(head) - 2  # a line before the ladder and one before the records
    drawn = _curve(view.curve, width, max(1, min(CURVE_ROWS_MAX, spare // 5)), ascii_only)
    spare -= len(drawn)
    ladder = max(2, min(len(view.rows) + 1, spare // 2))
    ladder_lines = _ladder(view, ladder)
    records = _records(view, max(0, spare - len(ladder_lines)))
    parts = [head, drawn, [Text()], ladder_lines, [Text()], records]
    lines = [line for part in parts for line in part][:height]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _head(view: View) -> list[Text]:
    status = view.status
    title = Text(_word(status.get("name")) or shown(view.directory), style="bold")
    phase = _word(status.get("phase"))
    if phase:
        title.append("  ")
        title.append(phase, style=COLOURS.get(phase, "yellow") if view.supervisor is not None else "dim")
    if status.get("waiting_for"):
        title.append(f" for {_word(status['waiting_for'])}", style="yellow")
    title.append(f"  {_step(view)}")
    lines = [title, Text(_pace(view)), _who(view), Text(_origin(view)), *map(Text, _goodput(view))]
    if status.get("failure"):
        lines.append(Text(f"failure: {_word(status['failure'])}", style="bold red"))
    if view.problem is not None:
        lines.insert(1, Text(printable(view.problem), style="yellow"))
    return [line for line in lines if line.plain]


def _step(view: View) -> str:
    step, final = _number(view.status.get("step")), _number(view.status.get("final_step"))
    if step is None:
        step = _number(view.status.get("high_water"))
    if step is None:
        return "no step yet" if view.status else ""
    if not final:
        return f"step {step:,.0f}"
    return f"step {step:,.0f} of {final:,.0f} ({100 * step / final:.0f} %){_left(view, final - step)}"


def _left(view: View, steps: float) -> str:
    pace = view.steps_per_second
    if not pace or steps <= 0 or not _is_training(view):
        return ""
    return f", {span(steps / pace)} left"


def _is_training(view: View) -> bool:
    return view.supervisor is not None and view.status.get("trainer_pid") is not None


def _pace(view: View) -> str:
    loss = view.status.get("loss")
    parts = [] if loss is None else [f"loss {loss:.4f}" if is_number(loss) else f"loss {_word(loss)}"]
    if _is_training(view):
        if view.steps_per_second:
            parts.append(f"{view.steps_per_second:,.3g} steps/s")
        if view.tokens_per_second:
            parts.append(f"{view.tokens_per_second:,.0f} tokens/s")
    return "  ".join(parts)


def _who(view: View) -> Text:
    if not view.status and view.supervisor is None:
        return Text()
    written = _number(view.status.get("written_at"))
    age = None if written is None else max(0.0, view.now - written)
    if view.supervisor is None:
        ago = "" if age is None else f"; its last word is {span(age)} old"
        return Text(f"no supervisor{ago}", style="dim" if view.status.get("exit_status") is not None else "bold red")
    text = Text(f"supervisor {view.supervisor or 'unknown'}")
    trainer = view.status.get("trainer_pid")
    text.append(f", trainer {_word(trainer)}" if trainer is not None else ", no trainer")
    if view.wanted not in (None, "run"):
        text.append(f", asked to {printable(view.wanted)}")
    if age is not None and age > LATE_SECONDS:
        text.append(f"; it has said nothing for {span(age)}", style="bold red")
    return text


def _origin(view: View) -> str:
    status = view.status
    if not status:
        return ""
    parts = [f"start {_word(status.get('incarnation'))}"] if status.get("incarnation") else []
    if status.get("resumed_from") is not None:
        parts.append(f"from {_word(status['resumed_from'])}")
    count = sum(view.restarts.values())
    causes = ", ".join(f"{printable(cause)} {times}" for cause, times in view.restarts.items())
    least = "at least " if view.records_cut else ""
    parts.append(f"restarts: {least}{count} ({causes})" if count else f"restarts: {least}0")
    good = status.get("last_good")
    if isinstance(good, dict):
        parts.append(f"last good {_word(good.get('name'))}")
    return "  ".join(parts)


def _goodput(view: View) -> list[str]:
    """What the run's time went to, in two lines: so far, and what follows from it."""
    if view.account_read < 1:
        return [f"goodput: {100 * view.account_read:.0f} % of what tells it is read"]
    told = [f"{name} {words}" for name, words in ([] if view.goodput is None else in_words(view.goodput))]
    return ["  ".join(told[:2]), "  ".join(told[2:])]


def _curve(points: Sequence[tuple[int, float]], width: int, rows: int, ascii_only: bool) -> list[Text]:
    """The loss over all steps that are known, as blocks, with its ends beside it."""
    if len(points) < 2:
        return []
    high, low = max(loss for _, loss in points), min(loss for _, loss in points)
    labels = [f"{high:.4g}", f"{low:.4g}"]
    margin = max(map(len, labels)) + 2
    columns = binned(points, max(1, width - margin))
    lines = sparkline(columns, rows, PLAIN_BLOCKS if ascii_only else BLOCKS)
    beside = [labels[0], *[""] * (rows - 2), labels[1]] if rows > 1 else [labels[0]]
    drawn = [
        Text.assemble(f"{label:>{margin - 1}} ", (line, "cyan")) for label, line in zip(beside, lines, strict=True)
    ]
    last = f"loss, steps {points[0][0]:,} to {points[-1][0]:,}"
    if rows == 1:
        last = f"{last}, from {labels[0]} down to {labels[1]}"
    return [*drawn, Text(" " * margin + last, style="dim")]


def binned(points: Sequence[tuple[int, float]], width: int) -> list[float | None]:
    """Means of the losses in stretches of steps of equal length, no more than there are points; None where none is known."""
    first, last = points[0][0], points[-1][0]
    width = min(width, len(points))
    bins: list[list[float]] = [[] for _ in range(width)]
    for step, loss in points:
        bins[min(width - 1, (step - first) * width // (last - first + 1))].append(loss)
    return [sum(one) / len(one) if one else None for one in bins]


def sparkline(values: Sequence[float | None], rows: int, blocks: str = BLOCKS) -> list[str]:
    """Lines of blocks, the highest first; a column without a value is empty, the lowest value is one block high."""
    known = [value for value in values if value is not None]
    if not known:
        return [" " * len(values)] * rows
    low, high, steps = min(known), max(known), len(blocks)
    heights = [
        0 if value is None else 1 + round((value - low) / (high - low or 1) * (rows * steps - 1)) for value in values
    ]
    return [
        "".join(" " if (here := min(steps, height - row * steps)) <= 0 else blocks[here - 1] for height in heights)
        for row in reversed(range(rows))
    ]


def _ladder(view: View, height: int) -> list[Text]:
    """As many rungs as fit in `height` lines, the newest first, with a head."""
    if not view.rows:
        return [Text("no snapshots yet", style="dim")]
    head = Text(f"{'STEP':>10} {'SIZE':>10} {'AGE':>6} {'VERDICT':<12} {'PROOF':<9} NAME", style="bold")
    shown_rows = view.rows[: height - 1]
    if len(shown_rows) < view.rungs:
        head.append(f" (newest {len(shown_rows):,} of {view.rungs:,})", style="not bold dim")
    return [head, *(_rung(row, view.now) for row in shown_rows)]


def _rung(row: Row, now: float) -> Text:
    step = "-" if row.step is None else str(row.step)
    verdict = row.verdict or "not judged"
    style = "red" if verdict in _BAD else COLOURS.get(verdict, "dim")
    return Text.assemble(
        f"{step:>10} {bytes_text(row.bytes):>10} {span(now - row.mtime):>6} ",
        (f"{printable(verdict):<12}", style),
        f" {row.proof or '-':<9} {shown(row.name)}",
    )


def _records(view: View, height: int) -> list[Text]:
    """The last records that fit, the newest last."""
    return [_record(one) for one in view.records[-height:]] if height > 0 else []


def _record(one: dict[str, Any]) -> Text:
    level = _word(one.get("level"))
    hidden = _EVERY_RECORD | _HIDDEN | (_REASONS if level == "info" else frozenset())
    facts = {key: value for key, value in one.items() if key not in hidden and value is not None and value != []}
    said = " ".join(f"{printable(key)}={_word(value)}" for key, value in facts.items())
    return Text.assemble(
        (_word(one.get("timestamp"))[11:19] + " ", "dim"),
        (f"{_word(one.get('event')):<20}", COLOURS.get(level, "")),
        f" {said}",
    )


def _word(value: Any) -> str:
    """Any value on one line."""
    if value is None:
        return ""
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def _number(value: Any) -> float | None:
    return value if is_number(value) else None
