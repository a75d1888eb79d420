"""A run that makes room for another and goes on later, with real processes."""

import signal
import subprocess
import time

from supervisor.adapters.statefile import write_wanted
from tests.bench import Bench, marked, until


def wish(bench: Bench, process: "subprocess.Popen[bytes]", wanted: str) -> None:
    write_wanted(str(bench.directory), wanted)
    process.send_signal(signal.SIGUSR1)


def test_a_paused_run_holds_nothing_and_goes_on_where_it_was(bench: Bench) -> None:
    """The trainer saves and is gone with its children; the supervisor stays, and resumes the run when that is wished for."""
    process = bench.start(*bench.command("--steps=60", "--every=5", "--pause=0.1", "--habit=final", "--habit=fork"))
    until(lambda: (bench.directory / "step_5.pt").exists())
    wish(bench, process, "pause")
    paused = bench.wait_for("run.paused")

    assert [] == marked(bench.folder)
    assert None is process.poll()
    assert until(lambda: bench.state("status.json")["phase"] == "paused")
    assert (bench.directory / "final.txt").exists()
    wish(bench, process, "run")
    bench.wait_for("trainer.spawned", 2)

    assert ["0", str(paused["step"])] == until(lambda: len(bench.starts()) == 2 and bench.starts())
    process.terminate()
    assert 143 == process.wait(20)
    assert ["stopped", "stopped"] == [one["cause"] for one in bench.records("trainer.exited")]


def test_a_pause_outlives_the_supervisor(bench: Bench) -> None:
    """Killed and started again, it starts no trainer, says why, and goes on once that is wished for."""
    command = bench.command("--steps=30", "--every=5", "--pause=0.1", sets=("run.final_step=30",))
    process = bench.start(*command)
    until(lambda: (bench.directory / "step_5.pt").exists())
    wish(bench, process, "pause")
    bench.wait_for("run.paused")
    process.kill()
    process.wait()

    again = bench.start(*command)
    bench.wait_for("run.paused", 2)
    time.sleep(0.3)
    assert 1 == len(bench.records("trainer.spawned"))
    wish(bench, again, "run")

    assert 0 == again.wait(30)
    assert 2 == len(bench.starts())
