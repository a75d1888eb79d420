"""A run that makes room for another and goes on later, with real processes."""

import signal
import time

import pytest

from tests.bench import Bench, marked, until


def test_a_paused_run_holds_nothing_and_goes_on_where_it_was(bench: Bench) -> None:
    """The trainer saves and is gone with its children; the supervisor stays, and resumes the run when that is wished for."""
    process = bench.start(*bench.command("--steps=60", "--every=5", "--pause=0.1", "--habit=final", "--habit=fork"))
    until(lambda: (bench.directory / "step_5.pt").exists())
    done = bench.lastgood("pause", "checkpoints")
    paused = bench.records("run.paused")[0]

    assert (0, "checkpoints is paused") == (done.returncode, done.stdout.strip())
    assert [] == marked(bench.folder)
    assert None is process.poll()
    assert "paused" == bench.state("status.json")["phase"]
    assert 0 == bench.lastgood("pause", "checkpoints").returncode
    assert (bench.directory / "final.txt").exists()
    assert 0 == bench.lastgood("resume", "checkpoints").returncode

    assert ["0", str(paused["step"])] == until(lambda: len(bench.starts()) == 2 and bench.starts())
    process.terminate()
    assert 143 == process.wait(20)
    assert ["stopped", "stopped"] == [one["cause"] for one in bench.records("trainer.exited")]


def test_a_pause_outlives_the_supervisor(bench: Bench) -> None:
    """Killed and started again, it starts no trainer, says why, and goes on once that is wished for."""
    command = bench.command("--steps=30", "--every=5", "--pause=0.1", sets=("run.final_step=30",))
    process = bench.start(*command)
    until(lambda: (bench.directory / "step_5.pt").exists())
    assert 0 == bench.lastgood("pause", "checkpoints").returncode
    process.kill()
    process.wait()

    again = bench.start(*command)
    bench.wait_for("run.paused", 2)
    time.sleep(0.3)
    assert 1 == len(bench.records("trainer.spawned"))
    assert 0 == bench.lastgood("resume", "checkpoints").returncode

    assert 0 == again.wait(30)
    assert 2 == len(bench.starts())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_pause_outlives_a_service_manager_and_a_reboot(bench: Bench, number: signal.Signals, status: int) -> None:
    """What ends a paused supervisor by a signal does not take the pause back; the next one waits until that is wished for."""
    command = bench.command("--steps=30", "--every=5", "--pause=0.1", sets=("run.final_step=30",))
    process = bench.start(*command)
    until(lambda: (bench.directory / "step_5.pt").exists())
    assert 0 == bench.lastgood("pause", "checkpoints").returncode
    process.send_signal(number)
    assert (status, "pause") == (process.wait(20), bench.state("wanted.json")["wanted"])

    again = bench.start(*command)
    bench.wait_for("run.paused", 2)
    time.sleep(0.3)
    assert 1 == len(bench.records("trainer.spawned"))
    assert 0 == bench.lastgood("resume", "checkpoints").returncode
    assert 0 == again.wait(30)


def test_a_pause_that_has_not_come_about_outlives_a_signal_too(bench: Bench) -> None:
    """The trainer is still saving for it when the supervisor is told to end."""
    process = bench.start(*bench.command("--steps=1000", "--every=5", "--habit=final:2"))
    bench.wait_for("trainer.progressed")
    assert 1 == bench.lastgood("pause", "checkpoints", "--timeout=0.3").returncode
    process.terminate()

    assert (143, []) == (process.wait(20), bench.records("run.paused"))
    assert "pause" == bench.state("wanted.json")["wanted"]


def test_a_stop_that_is_said_ends_a_pause(bench: Bench) -> None:
    """`lastgood stop` is a wish of its own, the last one told: the next start goes on."""
    command = bench.command("--steps=20", "--every=5", "--pause=0.1", sets=("run.final_step=20",))
    process = bench.start(*command)
    bench.wait_for("trainer.progressed")
    assert 0 == bench.lastgood("pause", "checkpoints").returncode
    assert 0 == bench.lastgood("stop", "checkpoints").returncode
    assert (143, "stop") == (process.wait(10), bench.state("wanted.json")["wanted"])

    assert 0 == bench.lastgood(*command).returncode
    assert 1 == len(bench.records("run.paused"))


def test_a_wish_without_a_supervisor_is_kept_for_the_next(bench: Bench) -> None:
    """Exit status 3, and the run waits, or goes on, from its start."""
    command = bench.command("--steps=10", "--every=5", sets=("run.final_step=10",))
    bench.directory.mkdir()
    (bench.directory / ".lastgood").mkdir()
    done = bench.lastgood("pause", "checkpoints")
    assert (3, True) == (done.returncode, "no supervisor runs on checkpoints; its next start will wait" in done.stderr)
    process = bench.start(*command)
    bench.wait_for("run.paused")
    assert 0 == bench.lastgood("stop", "checkpoints").returncode
    assert 143 == process.wait(10)

    assert 3 == bench.lastgood("resume", "checkpoints").returncode
    assert 0 == bench.lastgood(*command).returncode


def test_a_pause_that_takes_too_long_says_so_and_is_still_wished_for(bench: Bench) -> None:
    """Exit status 1; the trainer is saving for as long as its grace lasts."""
    process = bench.start(*bench.command("--steps=1000", "--every=5", "--habit=final:3"))
    bench.wait_for("trainer.progressed")
    done = bench.lastgood("pause", "checkpoints", "--timeout=0.5")

    assert 1 == done.returncode
    assert "it has not come about within 0.5 s, and is still wished for" in done.stderr
    bench.wait_for("run.paused")
    process.terminate()
    assert 143 == process.wait(20)


def test_a_run_that_is_no_run_cannot_be_paused(bench: Bench) -> None:
    """One line, and nothing is made there."""
    (bench.folder / "empty").mkdir()
    done = bench.lastgood("pause", "empty")

    assert 1 == done.returncode
    assert "the wish cannot be written (No such file or directory); is it a run's directory?" in done.stderr
    assert [] == list((bench.folder / "empty").iterdir())
