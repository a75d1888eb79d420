"""What a trainer's own saving and loading finds out reaches the records."""

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.records import CATALOGUE
from tests.bench import ROOT, Bench

TRAINER = ROOT / "tests" / "saving_trainer.py"


SELDOM = "checkpoints.rescan_seconds=30"
"""So that whatever is heard is not heard by chance."""


def supervised(bench: Bench, *words: str, final_step: int) -> int:
    """Supervise the saving trainer to the end of the run; returns the exit status."""
    run = bench.command(sets=(f"run.final_step={final_step}", SELDOM), resume="self")
    return bench.lastgood(*run[: run.index("--") + 1], sys.executable, str(TRAINER), *words).returncode


def in_the_catalogue(record: dict[str, Any]) -> bool:
    """Whether a record has just the fields that an alert may match on."""
    common = {"event", "level", "timestamp", "run", "run_id", "incarnation", "seq"}
    return common | set(CATALOGUE[record["event"]].fields) == record.keys()


def told(directory: Path) -> list[str]:
    """The names of all records, in order."""
    return [json.loads(line)["event"] for line in (directory / ".lastgood" / "events.jsonl").read_bytes().splitlines()]


def test_a_failed_save_is_in_the_records(bench: Bench) -> None:
    """Waited for, made behind the trainer's back, or fatal: each is one warning, before the death that it may have caused."""
    refused = ("--refuse=5:blocking", "--refuse=10:behind", "--refuse=15:fatal")
    assert 0 == supervised(bench, "20", *refused, final_step=20)

    assert [(5, "ckpt_00000005.pt", True), (10, "ckpt_00000010.pt", False), (15, "ckpt_00000015.pt", True)] == [
        (one["step"], one["name"], one["blocking"]) for one in bench.records("save.failed")
    ]
    assert {("warning", 1, errno.EFBIG, True)} == {
        (one["level"], one["incarnation"], one["errno"], "File too large" in one["reason"])
        for one in bench.records("save.failed")
    }
    assert all(map(in_the_catalogue, bench.records("save.failed")))
    names = told(bench.directory)
    assert 3 == names[: names.index("trainer.exited")].count("save.failed")
    assert ["0", "0"] == bench.starts()


@pytest.mark.parametrize("mute", [(), ("--mute",)], ids=["said", "in silence"])
def test_a_trainer_that_falls_back_by_itself_must_say_so(bench: Bench, mute: tuple[str, ...]) -> None:
    """Its newest snapshot rots as it starts: that it takes the one before is a fallback if said, and ignoring it if not."""
    assert 0 == supervised(bench, "15", final_step=15)
    status = supervised(bench, "25", "--rot", *mute, final_step=25)
    assert ["0", "10"] == bench.starts()
    if mute:
        assert (5, 1) == (status, len(bench.records("resume.ignored")))
        return

    assert (0, []) == (status, bench.records("resume.ignored"))
    [said] = bench.records("fallback.chosen")
    assert in_the_catalogue(said)
    assert ("warning", "trainer", 15, 10, "ckpt_00000010.pt", 1, 5) == tuple(
        said[key] for key in ("level", "by", "newest_step", "chosen_step", "chosen", "depth", "steps_lost")
    )
    assert [("ckpt_00000015.pt", "corrupt")] == [(one["name"], one["verdict"]) for one in said["rejected"]]
    assert "ckpt_00000010.pt" == bench.state("status.json")["resumed_from"]


def ended(bench: Bench, status: int) -> tuple[int, list[tuple[str, int, int]]]:
    """Supervise a trainer that ends with `status` below a launcher that makes a 1 of it, as torchrun does.

    Returns the supervisor's exit status, and cause, code and noted status of each death.
    """
    script = bench.folder / "ending.py"
    script.write_text(
        "import os, sys\nfrom lastgood.notes import note_ending\nstatus = int(sys.argv[1])\n"
        "note_ending(os.environ['LASTGOOD_CHECKPOINT_DIR'], status)\nsys.exit(status)\n"
    )
    run = bench.command(sets=("restarts.without_progress=2", SELDOM), resume="never")
    launcher = ("sh", "-c", '"$@"; exit 1', "launcher", sys.executable, str(script), str(status))
    answer = bench.lastgood(*run[: run.index("--") + 1], *launcher).returncode
    deaths = bench.records("trainer.exited")
    assert all(map(in_the_catalogue, deaths))
    return answer, [(one["cause"], one["code"], one["said"]) for one in deaths]


def test_a_trainer_below_a_launcher_is_believed_how_it_ended(bench: Bench) -> None:
    """Divergence is named although the launcher says 1, and is retried under the budget."""
    assert (4, [("diverged", 1, 65)] * 2) == ended(bench, 65)


def test_a_usage_error_below_a_launcher_is_not_retried(bench: Bench) -> None:
    """The run ends with 2 after a single start."""
    assert (2, [("usage", 1, 2)]) == ended(bench, 2)
    assert [] == bench.records("restart.scheduled")


def test_a_trainer_that_says_nothing_else_is_heard_too(bench: Bench) -> None:
    """A note is told within a rescan, although no step, no snapshot and no death asks for a look."""
    script = bench.folder / "quiet.py"
    script.write_text(
        "import os, time\nfrom lastgood.notes import note\ndirectory = os.environ['LASTGOOD_CHECKPOINT_DIR']\n"
        "note('save.failed', directory, step=7, name='a.pt', reason='x', errno=28, blocking=False)\ntime.sleep(60)\n"
    )
    run = bench.command(resume="self")
    bench.start(*run[: run.index("--") + 1], sys.executable, str(script))

    assert (7, 28) == tuple(bench.wait_for("save.failed")[key] for key in ("step", "errno"))
    assert [] == bench.records("trainer.exited")


@pytest.mark.heavy  # torch is imported twelve times
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--learning_rate=1e30", "--grad_clip=0", "--warmup_iters=0", "--min_lr=0"], (4, [("diverged", 1, 65)] * 2)),
        (["--n_layers=3"], (2, [("usage", 1, 2)])),
    ],
    ids=["diverged", "usage"],
)
def test_the_bundled_trainer_is_understood_through_torchrun(
    bench: Bench, words: list[str], expected: tuple[int, list[tuple[str, int, int]]]
) -> None:
    """Of two ranks that diverge, or are started wrongly, torchrun makes a 1, and the records say what it was."""
    run = bench.command(sets=("restarts.without_progress=2", SELDOM), resume="env")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "trainer"]
    config = str(ROOT / "config" / "trainer" / "tiny.yaml")
    ours = [f"--data_dir={bench.folder}", "--gradient_accumulation_steps=2", "--dtype=bfloat16", "--save_interval=1000"]

    answer = bench.lastgood(*run[: run.index("--") + 1], *torchrun, config, *ours, *words, timeout=240).returncode

    deaths = [(one["cause"], one["code"], one["said"]) for one in bench.records("trainer.exited")]
    assert expected == (answer, deaths)
