"""What a run shows: a bar on a terminal, lines anywhere else."""

import io
import os
import pty
import re
import subprocess
import sys

import pytest

from trainer import progress


def on_a_terminal(arguments, **environ):
    """The status of a trainer on a terminal of 100 columns, and all that it drew there."""
    ours, theirs = pty.openpty()
    environ = os.environ | {"TERM": "xterm", "COLUMNS": "100"} | environ
    with subprocess.Popen(
        [sys.executable, "-m", "trainer", *arguments], stdout=theirs, stderr=theirs, env=environ
    ) as process:
        os.close(theirs)
        drawn = b""
        try:
            while piece := os.read(ours, 65536):
                drawn += piece
        except OSError:  # the last one at the other end has gone
            pass
        os.close(ours)
        return process.wait(60), drawn.decode()


def test_on_a_terminal_a_bar_takes_the_place_of_the_steps_lines(config):
    """It ends at the last step, with loss and speed; evaluations stay above it as lines, and no `iter` line is there."""
    status, drawn = on_a_terminal([config, "--eval_interval=10"])

    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn)
    assert 0 == status
    assert re.search(r"step 20/20 \S+ loss \d\.\d{4}, [\d,]+ tokens/s, mfu \d+\.\d\d% 00:00", text)
    assert ["0", "10", "20"] == re.findall(r"step (\d+): train loss", text)
    assert "iter " not in text


def test_a_terminal_that_cannot_go_back_gets_lines(config):
    """TERM=dumb, as in an editor's shell."""
    status, drawn = on_a_terminal([config, "--log_interval=10"], TERM="dumb")

    assert 0 == status
    assert ["1", "10", "20"] == re.findall(r"iter (\d+): loss", drawn)
    assert "\x1b" not in drawn


def test_the_end_of_a_run_is_told_above_the_bar(config):
    """One that diverges leaves the bar where it was, and the cursor to be seen."""
    unstable = ["--learning_rate=1e30", "--grad_clip=0", "--warmup_iters=0", "--dtype=bfloat16"]

    status, drawn = on_a_terminal([config, *unstable])

    assert 65 == status
    assert re.search(r"diverged at step \d+: .*nothing is saved.*step \d+/20 ", drawn, re.DOTALL)
    assert drawn.endswith("\x1b[?25h")


@pytest.mark.parametrize(("seconds", "times"), [(0.0, 2), (1.0, 20)], ids=["fast steps", "slow steps"])
def test_the_bar_is_drawn_at_most_ten_times_a_second(settings, monkeypatch, seconds, times):
    """However fast the steps are; the last one is always drawn."""
    from rich.console import Console

    console = Console(force_terminal=True, width=100, file=io.StringIO())
    now = iter([1000.0 + seconds * step for step in range(100)])
    drawn = []

    with progress.bar(console, settings(), 0, lambda seconds: 0.5) as told:
        monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
        monkeypatch.setattr("rich.progress.Progress.refresh", lambda self: drawn.append(self.tasks[0].completed))
        for step in range(1, 21):
            told(step, 1.0, 0.01)
        monkeypatch.undo()

    assert times == len(drawn)
    assert 20 == drawn[-1]
