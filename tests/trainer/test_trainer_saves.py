"""Saves behind the loop's back: what fails is said and survived, up to a limit, and the last one is waited for."""

import json
import os
import signal
import threading

import pytest
import torch

import lastgood
from tests.trainer.comparing import losses_of, state_differs
from tests.trainer.test_trainer_loop import at_step, snapshots
from trainer import train
from trainer.__main__ import main

BROKEN = OSError(5, "Input/output error")


@pytest.fixture
def fail(monkeypatch):
    """Makes the writing of these snapshots fail, as on a broken disk; the list of steps that were tried is returned."""

    def make(*steps):
        real, tried = torch.save, []

        def save(payload, file):
            tried.append(payload["iter_num"])
            if payload["iter_num"] in steps:
                file.write(b"half")
                raise BROKEN
            real(payload, file)

        monkeypatch.setattr(torch, "save", save)
        return tried

    return make


@pytest.mark.parametrize("blocking", [True, False])
def test_a_failed_save_is_said_and_training_goes_on(blocking, settings, capsys, fail):
    """One line with the step, the system's words and the count; the next save counts from the start again."""
    tried = fail(4, 6, 12)

    assert 0 == train.train(settings(save_interval=2, save_blocking=blocking, max_to_keep=20))

    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: save failed")]
    said = [f"warning: save failed at step {step}: [Errno 5] Input/output error" for step in (4, 6, 12)]
    assert [f"{said[0]}; 1 in a row, 3 end the run", f"{said[1]}; 2 in a row, 3 end the run"] == lines[:2]
    assert [f"{said[2]}; 1 in a row, 3 end the run"] == lines[2:]
    assert list(range(2, 21, 2)) == tried
    assert [2, 8, 10, 14, 16, 18, 20] == snapshots(settings().out_dir)
    assert [] == [name for name in os.listdir(settings().out_dir) if "partial" in name]


@pytest.mark.parametrize("blocking", [True, False])
def test_too_many_failed_saves_in_a_row_end_the_run(blocking, settings, fail, steps):
    """Three by default: status 1 and a line with the number and the cure; the good ones stay."""
    fail(4, 6, 8, 10)

    with pytest.raises(SystemExit, match=r"^trainer: 3 saves in a row failed, which is the limit; make room or mend"):
        train.train(settings(save_interval=2, save_blocking=blocking))

    assert [2] == snapshots(settings().out_dir)
    assert (8 if blocking else 10) == max(steps(settings().out_dir))


def test_the_limit_is_a_setting(settings, fail):
    """With a limit of one the first failed save is the last."""
    tried = fail(4)

    with pytest.raises(SystemExit, match="a save failed, which is the limit"):
        train.train(settings(save_interval=4, save_failures_max=1))
    assert [4] == tried


@pytest.mark.parametrize("blocking", [True, False])
def test_a_failed_last_save_is_an_error(blocking, settings, fail):
    """Nothing makes up for it: status 1 and one line."""
    fail(20)

    with pytest.raises(SystemExit, match=r"^trainer: save failed at step 20: \[Errno 5\] Input/output error$"):
        train.train(settings(save_blocking=blocking))


def test_the_last_save_is_tried_however_many_failed_before(settings, fail):
    """A stop after two failed saves of three saves once more, and that it fails is said."""
    tried = fail(5, 10, 15)

    assert 0 == train.train(settings(save_interval=5))
    assert [5, 10, 15, 20] == tried
    assert [20] == snapshots(settings().out_dir)


def test_a_save_that_does_not_read_back_is_a_failed_one(settings, capsys, monkeypatch):
    """What is found wrong behind the loop's back counts as much as what fails at once."""
    real = lastgood.CheckpointManager._confirm_and_prune

    def confirm(manager, *arguments):
        if "00000010" in str(arguments):
            raise OSError(5, "it does not read back")
        real(manager, *arguments)

    monkeypatch.setattr(lastgood.CheckpointManager, "_confirm_and_prune", confirm)

    assert 0 == train.train(settings())
    assert "warning: save failed at step 10: [Errno 5] it does not read back; 1 in a row" in capsys.readouterr().out


def test_the_supervisor_is_told_of_a_failed_save(settings, fail, tmp_path, monkeypatch):
    """A note in the file that it names."""
    notes = tmp_path / "notes.jsonl"
    monkeypatch.setenv("LASTGOOD_NOTES", str(notes))
    monkeypatch.setenv("LASTGOOD_CHECKPOINT_DIR", settings().out_dir)
    fail(10)

    train.train(settings())

    (note,) = map(json.loads, notes.read_text().splitlines())
    assert ("save.failed", 10, 5) == tuple(note[key] for key in ("note", "step", "errno"))


def test_training_goes_on_while_a_snapshot_is_written(settings, steps, monkeypatch):
    """The writing of snapshot 5 ends only after step 8 was recorded; snapshot 5 is of step 5 all the same."""
    chosen = settings(save_interval=5, max_to_keep=9)
    real, reached = torch.save, threading.Event()
    at_step(monkeypatch, 9, reached.set)

    def save(payload, file):
        if payload["iter_num"] == 5:
            assert reached.wait(30)
        real(payload, file)

    monkeypatch.setattr(torch, "save", save)
    train.train(chosen)
    monkeypatch.undo()
    straight = settings(save_interval=5, save_blocking=True, max_to_keep=9, out_dir=chosen.out_dir + "-straight")
    train.train(straight)

    assert reached.is_set()
    assert losses_of(straight.out_dir) == losses_of(chosen.out_dir)
    assert [] == [place for step in (5, 10, 15, 20) for place in state_differs(straight.out_dir, chosen.out_dir, step)]


@pytest.mark.parametrize("ending", ["max_iters", "TERM", "divergence"])
def test_the_last_save_is_waited_for(ending, settings, monkeypatch):
    """However a run ends, nothing is half written when it has."""
    chosen = settings(save_interval=6)
    if ending == "TERM":
        at_step(monkeypatch, 9, lambda: os.kill(os.getpid(), signal.SIGTERM))
    if ending == "divergence":
        answers = iter([True, False])
        monkeypatch.setattr(train, "has_finite_weights", lambda model: next(answers))
    real = torch.save

    def save(payload, file):
        threading.Event().wait(0.2)  # a slow disk
        real(payload, file)

    monkeypatch.setattr(torch, "save", save)
    status = train.train(chosen)

    assert {"max_iters": 0, "TERM": 143, "divergence": 65}[ending] == status
    assert {"max_iters": 20, "TERM": 9, "divergence": 6}[ending] == max(snapshots(chosen.out_dir))
    assert {"healthy"} == {rung.verdict.kind for rung in lastgood.ladder(chosen.out_dir)}
    assert [] == [name for name in os.listdir(chosen.out_dir) if "partial" in name]
    assert [] == [thread.name for thread in threading.enumerate() if "lastgood" in thread.name]


def test_a_directory_taken_by_another_trainer_is_refused(config, capsys, settings):
    """Two that save in one folder would undo each other's work: status 2, and the holder is named."""
    with lastgood.CheckpointManager(settings().out_dir) as manager:
        manager.hold()

        assert 2 == main([config])

    assert f"is being written by process {os.getpid()}" in capsys.readouterr().err
