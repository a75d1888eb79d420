"""Whole lives on the real system: real processes, real kills, real files."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.proc import Identity, is_alive
from supervisor.runtime import STATUS_SECONDS
from tests.bench import Bench, marked, until
from tests.conftest import flip_bit


def test_an_undisturbed_run_completes(bench: Bench) -> None:
    """A script that knows nothing of lastgood is started, watched, and done when it exits with 0."""
    assert 0 == bench.run("--steps=10")
    assert ["0"] == bench.starts()
    assert {"step": 10} == {k: bench.records("run.completed")[0][k] for k in ("step",)}
    assert 10 == bench.state("run.json")["done"]


def test_a_completed_run_stays_completed(bench: Bench) -> None:
    """The next start says so and starts nothing; a higher final step goes on; a new run begins anew beside the old files."""
    assert 0 == bench.run("--steps=10", sets=("run.final_step=10",))
    assert 0 == bench.run("--steps=10", sets=("run.final_step=10",))
    assert ["0"] == bench.starts()

    assert 0 == bench.run("--steps=20", sets=("run.final_step=20",))
    assert ["0", "10"] == bench.starts()

    old = (bench.directory / "step_20.pt").stat()
    words = bench.command("--steps=5", sets=("run.final_step=5",))
    assert 0 == bench.lastgood(words[0], "--new-run", *words[1:]).returncode
    assert ["0", "10", "0"] == bench.starts()
    assert old.st_ino == (bench.directory / "step_20.pt").stat().st_ino


def test_a_new_run_of_a_trainer_that_would_find_the_old_snapshots_is_refused(bench: Bench) -> None:
    """It would go on from them in silence, and rotate them away; where there are none it may begin."""
    words = bench.command("--habit=self", "--steps=10", sets=("run.final_step=10",), resume="self")
    assert 0 == bench.lastgood(words[0], "--new-run", *words[1:]).returncode
    before = bench.state("run.json")
    refused = bench.lastgood(words[0], "--new-run", *words[1:])

    assert (2, 1) == (refused.returncode, len(refused.stderr.splitlines()))
    assert "would find the old ones; name another folder" in refused.stderr
    assert before == bench.state("run.json")


def test_a_new_run_resumes_from_its_own_snapshots_only(bench: Bench) -> None:
    """Higher numbers of an earlier run in the same directory are left alone and not resumed from."""
    assert 0 == bench.run("--steps=20")
    words = bench.command("--steps=15", "--habit=always-die:8", sets=("run.final_step=15",))
    process = bench.start(words[0], "--new-run", *words[1:])
    until(lambda: len(bench.starts()) >= 3)
    process.terminate()
    assert 143 == process.wait(20)

    assert ["0", "0", "5"] == bench.starts()[:3]
    assert (bench.directory / "step_20.pt").exists()


def test_a_killed_trainer_goes_on_from_the_newest_good_snapshot(bench: Bench) -> None:
    """SIGKILL at step 12: the next trainer starts from 10, and the record says why it died."""
    assert 0 == bench.run("--steps=20", "--habit=die:12", sets=("run.final_step=20",))
    assert ["0", "10"] == bench.starts()
    exited = bench.records("trainer.exited")[0]
    assert ("killed", 9, 12) == (exited["cause"], exited["signal"], exited["step"])
    assert "step 12: loss 0.3333" == exited["last_lines"][-1]
    assert ("step_10.pt", 10) == tuple(bench.records("trainer.spawned")[1][k] for k in ("resumed_from", "step"))


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "zero"])
def test_a_damaged_newest_snapshot_is_passed_over_and_set_aside(bench: Bench, damage: str) -> None:
    """Killed with a damaged newest snapshot, the run goes on from the one before, and keeps the evidence."""
    assert 0 == bench.run("--steps=20")
    newest = bench.directory / "step_20.pt"
    match damage:
        case "cut":
            os.truncate(newest, newest.stat().st_size // 2)
        case "flip":
            flip_bit(newest, 2000)
        case "empty":
            os.truncate(newest, 0)
        case "zero":
            newest.write_bytes(bytes(newest.stat().st_size))
    words = bench.command("--steps=30", sets=("run.final_step=30",))
    assert 0 == bench.lastgood(*words).returncode

    said = bench.records("fallback.chosen")[0]
    assert ("warning", 20, 15, 1, 5) == tuple(
        said[k] for k in ("level", "newest_step", "chosen_step", "depth", "steps_lost")
    )
    assert "step_20.pt" == said["rejected"][0]["name"]
    assert ["0", "15"] == bench.starts()
    aside = Path(bench.records("snapshot.quarantined")[0]["path"])
    assert "step_20.pt" == aside.name
    assert said["rejected"][0]["verdict"] in json.loads((aside.parent / "reason.json").read_text())["reason"]


def test_all_snapshots_bad_is_the_end_not_a_fresh_start(bench: Bench) -> None:
    """With nothing good left nothing is started or moved, and the status is 3; a fresh start must be asked for."""
    assert 0 == bench.run("--steps=15")
    for path in bench.directory.glob("*.pt"):
        os.truncate(path, 100)
    before = sorted(path.name for path in bench.directory.iterdir())
    words = bench.command("--steps=20", sets=("run.final_step=20",))

    assert 3 == bench.lastgood(*words).returncode
    assert (["0"], before) == (bench.starts(), sorted(path.name for path in bench.directory.iterdir()))
    assert "none of 3 snapshots is healthy" in bench.records("run.failed")[0]["reason"]

    assert 0 == bench.lastgood(words[0], "--allow-fresh-start", *words[1:]).returncode
    assert ["0", "0"] == bench.starts()
    assert 3 == len(bench.records("snapshot.quarantined"))


def test_snapshots_that_vanished_are_no_fresh_start_either(bench: Bench) -> None:
    """A directory known to have held snapshots is not taken for a new one when they are gone."""
    assert 0 == bench.run("--steps=10")
    for path in bench.directory.glob("*.pt"):
        path.unlink()

    assert 3 == bench.run("--steps=20", sets=("run.final_step=20",))
    assert ["0"] == bench.starts()


def test_a_trainer_that_ignores_its_snapshot_is_killed_before_it_can_harm(bench: Bench) -> None:
    """Starting over instead of resuming ends the run with 5; the snapshots are as they were."""
    assert 0 == bench.run("--steps=20")
    before = {path.name: path.read_bytes() for path in bench.directory.glob("*.pt")}
    status = bench.run("--steps=40", "--habit=ignore", "--pause=0.2", sets=("run.final_step=40",))

    assert 5 == status
    assert (20, 2) == tuple(bench.records("resume.ignored")[0][k] for k in ("resumed_step", "reported_step"))
    assert before == {path.name: path.read_bytes() for path in bench.directory.glob("*.pt")}


def test_a_trainer_that_finds_the_newest_itself_does_not_find_a_bad_one(bench: Bench) -> None:
    """With resume `self`, bad snapshots are out of its sight before it starts."""
    assert 0 == bench.run("--steps=20", "--habit=self", resume="self")
    flip_bit(bench.directory / "step_20.pt", 2000)

    assert 0 == bench.run("--steps=30", "--habit=self", resume="self", sets=("run.final_step=30",))
    assert ["0", "15"] == bench.starts()


def test_resume_env_and_never(bench: Bench) -> None:
    """The environment tells the snapshot; with `never` every start is a fresh one, as somebody chose."""
    assert 0 == bench.run("--steps=20", "--habit=die:12", resume="env", sets=("run.final_step=20",))
    assert ["0", "10"] == bench.starts()
    (bench.directory / "starts.txt").unlink()

    assert 0 == bench.run("--steps=30", "--habit=die:7", resume="never", sets=("run.final_step=30",))
    assert ["0", "0"] == bench.starts()


def test_no_progress_ends_the_run(bench: Bench) -> None:
    """A trainer that dies before its first snapshot, again and again, is given up with status 4."""
    assert 4 == bench.run("--habit=always-die:3")
    assert 5 == len(bench.starts())
    assert ["crashed"] * 5 == [record["cause"] for record in bench.records("trainer.exited")]
    delays = [record["delay_seconds"] for record in bench.records("restart.scheduled")]
    assert 4 == len(delays)
    assert delays[0] < delays[-1] <= 0.2


def test_a_command_that_only_fails_is_told_apart(bench: Bench) -> None:
    """`false` spends the budget; a usage error is not retried at all."""
    base = bench.command()
    cut = base.index("--") + 1
    assert 4 == bench.lastgood(*base[:cut], "false").returncode
    assert 2 == bench.lastgood(*base[:cut], "sh", "-c", "exit 2").returncode
    assert "usage" == bench.records("trainer.exited")[-1]["cause"]


def test_exit_0_before_the_end_is_no_completion(bench: Bench) -> None:
    """A trainer that leaves early with 0 is restarted under the budget."""
    assert 4 == bench.run("--habit=nothing:3", sets=("run.final_step=20",))
    assert "ended-early" == bench.records("trainer.exited")[0]["cause"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_lets_the_trainer_save(bench: Bench, number: signal.Signals, status: int) -> None:
    """Asked to stop, also twice, the trainer gets its time to save, and the next start goes on."""
    process = bench.start(*bench.command("--steps=10000", "--habit=final:1"))
    bench.wait_for("trainer.progressed")
    process.send_signal(number)
    bench.wait_for("trainer.asked_to_stop")
    process.send_signal(number)

    assert status == process.wait(20)
    assert (bench.directory / "final.txt").exists()
    assert "stopped" == bench.records("trainer.exited")[0]["cause"]
    assert status == bench.state("status.json")["exit_status"]


def test_a_stop_reaches_a_trainer_inside_a_shell(bench: Bench) -> None:
    """`sh -c 'python x.py; true'` passes nothing on; the trainer is asked all the same, and its save is waited for."""
    words = bench.command("--steps=10000", "--habit=final:1")
    cut = words.index("--") + 1
    line = " ".join(words[cut:]) + "; true"
    process = bench.start(*words[:cut], "sh", "-c", line)
    bench.wait_for("trainer.progressed")
    process.terminate()

    assert 143 == process.wait(20)
    assert (bench.directory / "final.txt").exists()


def test_a_trainer_that_ignores_the_stop_is_killed_when_its_grace_is_over(bench: Bench) -> None:
    """SIGTERM ignored: SIGKILL for the tree after the grace."""
    process = bench.start(*bench.command("--steps=10000", "--habit=stubborn", sets=("trainer.grace_seconds=0.3",)))
    bench.wait_for("trainer.progressed")
    process.terminate()

    assert 143 == process.wait(20)
    assert 1 == len(bench.records("trainer.grace_over"))


@pytest.mark.parametrize("habit", ["fork", "detach"])
def test_children_of_a_dead_trainer_are_gone_before_the_next_start(bench: Bench, habit: str) -> None:
    """Forked, detached, in their own sessions: nothing of a dead incarnation is left when the next one starts."""
    process = bench.start(*bench.command("--steps=10000", f"--habit={habit}", "--habit=die:7"))
    spawned = bench.wait_for("trainer.spawned", 2)
    generations = until(lambda: _generations(bench.folder))  # one that runs another program shows none for a moment

    assert {b"LASTGOOD_INCARNATION=2"} == generations
    assert 2 == spawned["incarnation"]
    process.terminate()
    process.wait(20)
    assert [] == marked(bench.folder)


def _generations(folder: Path) -> set[bytes]:
    """Which incarnations the processes of a run are of."""
    parts = {part for pid in marked(folder) for part in _environment(pid)}
    return {part for part in parts if part.startswith(b"LASTGOOD_INCARNATION=")}


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def test_the_next_supervisor_ends_what_a_killed_one_left_and_goes_on(bench: Bench) -> None:
    """SIGKILL of the supervisor: the trainer dies with it, its detached children are ended by the next, which completes."""
    words = bench.command("--steps=60", "--habit=detach", sets=("run.final_step=60",))
    process = bench.start(*words)
    bench.wait_for("trainer.progressed", 2)
    until(lambda: bench.state("status.json").get("trainer_pid"))
    status = bench.state("status.json")
    leader = Identity(status["trainer_pid"], status["trainer_start_ticks"])
    process.kill()
    process.wait()
    until(lambda: not is_alive(leader), 5)
    left = marked(bench.folder)
    assert 3 == len(left)

    assert 0 == bench.lastgood(*words).returncode
    assert set(left) == set(bench.records("trainer.leftover_ended")[0]["pids"])
    assert "0" != bench.starts()[1]
    assert 2 == len(bench.starts())


def test_one_supervisor_a_directory(bench: Bench) -> None:
    """A second one is told who has it and ends with 7; the first goes on."""
    process = bench.start(*bench.command("--steps=10000"))
    bench.wait_for("trainer.progressed")
    second = bench.lastgood(*bench.command("--steps=10000"))

    assert 7 == second.returncode
    assert f"supervised by process {process.pid}" in second.stderr
    assert process.poll() is None
    assert ["0"] == bench.starts()


def test_a_stalled_trainer_is_ended_and_started_again(bench: Bench) -> None:
    """Silence past its deadline is a death, and the run goes on."""
    assert 0 == bench.run("--steps=20", "--habit=hang:12", sets=("run.final_step=20", "stall.running_seconds=0.5"))
    assert "stalled" == bench.records("trainer.exited")[0]["cause"]
    assert ["0", "10"] == bench.starts()


def test_a_stopped_process_is_a_stalled_one(bench: Bench) -> None:
    """SIGSTOP makes no exit; the silence is noticed, and the frozen process is ended."""
    bench.start(*bench.command("--steps=10000", sets=("stall.running_seconds=0.5",)))
    bench.wait_for("trainer.progressed")
    os.kill(bench.records("trainer.spawned")[0]["pid"], signal.SIGSTOP)

    assert "stalled" == bench.wait_for("trainer.exited")["cause"]
    bench.wait_for("trainer.spawned", 2)


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_garbage_in_the_output_hurts_nobody(bench: Bench, locale: str) -> None:
    """Bad bytes, control characters and a huge line: the run completes, and every record is JSON."""
    words = bench.command("--steps=10", "--habit=garbage", "--habit=die:7", sets=("run.final_step=10",))
    done = bench.lastgood(*words, env={**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0"})

    assert 0 == done.returncode, done.stderr
    assert ["0", "5"] == bench.starts()
    for line in done.stdout.splitlines():
        assert json.loads(line)["event"]


def test_a_lost_log_folder_does_not_stop_the_trainer(bench: Bench) -> None:
    """The supervisor's folder deleted in mid-run costs the log, not the run."""
    import shutil

    process = bench.start(*bench.command("--steps=200", "--pause=0.01", sets=("run.final_step=200",)))
    bench.wait_for("trainer.progressed")
    (bench.directory / ".lastgood").rename(bench.directory / ".gone")
    shutil.rmtree(bench.directory / ".gone", ignore_errors=True)

    assert 0 == process.wait(30)
    assert ["0"] == bench.starts()


def test_a_failing_load_of_good_snapshots_harms_none(bench: Bench) -> None:
    """Software that cannot load its snapshots does not cost a single one of them."""
    assert 0 == bench.run("--steps=15")
    before = sorted(path.name for path in bench.directory.glob("*.pt"))

    assert 5 == bench.run("--steps=30", "--habit=refuse", sets=("run.final_step=30",))
    assert before == sorted(path.name for path in bench.directory.glob("*.pt"))
    assert "Weights only load failed" in bench.records("trainer.exited")[-1]["last_lines"][-1]


def test_unsealed_snapshots_are_sealed_once_outlived(bench: Bench) -> None:
    """Snapshots that came without a seal get one, bound to the file, as soon as the trainer has gone on."""
    assert 0 == bench.run("--steps=20")
    listed = json.loads(bench.lastgood("list", str(bench.directory), "--json").stdout)

    assert [20, 15, 10, 5] == [entry["step"] for entry in listed]
    assert {("healthy", "seal")} == {(entry["verdict"], entry["proof"]) for entry in listed[1:]}
    assert listed[0]["verdict"] in ("healthy", "intact")


def test_a_foreign_trainers_snapshots_are_not_pruned_unless_asked_for(bench: Bench) -> None:
    """Whoever rotates is the trainer, unless retention is configured; what it was resumed from stays as long as it runs."""
    assert 0 == bench.run("--steps=40")
    assert 8 == len(list(bench.directory.glob("*.pt")))

    assert 0 == bench.run("--steps=60", sets=("run.final_step=60", "checkpoints.keep.last=2"))
    listed = json.loads(bench.lastgood("list", str(bench.directory), "--json").stdout)
    steps = [entry["step"] for entry in listed]
    assert [60, 55] == steps[:2]
    assert 40 in steps
    assert len(steps) <= 4  # the last arrival may come too late for another pruning


def test_the_best_snapshot_stays(bench: Bench) -> None:
    """Retention keeps the one with the lowest loss told, beside the newest and the one in use; 0 asks for none."""
    for best, left in ((1, [10, 20, 25, 30]), (0, [20, 25, 30])):
        sets = (f"checkpoints.keep={{last: 2, best: {best}}}", "run.final_step=30")
        assert 0 == bench.run("--steps=30", "--pause=0.05", "--habit=best:10", "--habit=die:22", sets=sets)
        assert left == sorted(int(path.stem[5:]) for path in bench.directory.glob("*.pt"))
        shutil.rmtree(bench.directory)


def test_the_terminal_going_away_does_not_end_the_run(bench: Bench) -> None:
    """SIGHUP is no stop."""
    process = bench.start(*bench.command("--steps=40", sets=("run.final_step=40",)))
    bench.wait_for("trainer.progressed")
    process.send_signal(signal.SIGHUP)

    assert 0 == process.wait(20)


def test_status_list_and_latest_while_it_runs_and_after(bench: Bench) -> None:
    """What is shown is true: who supervises, which step, which snapshot is the latest good one."""
    process = bench.start(*bench.command("--steps=10000"))
    bench.wait_for("trainer.progressed", 2)
    until(lambda: bench.state("status.json")["high_water"])
    shown = json.loads(bench.lastgood("status", str(bench.directory), "--json").stdout)
    assert (True, process.pid, "running", "run") == tuple(
        shown[key] for key in ("supervised", "supervisor_pid", "phase", "wanted")
    )
    process.terminate()
    process.wait(20)

    shown = json.loads(bench.lastgood("status", str(bench.directory), "--json").stdout)
    latest = bench.lastgood("latest", str(bench.directory))
    assert (False, "stopped", "stop") == (shown["supervised"], shown["phase"], shown["wanted"])
    assert shown["last_good"]["name"] == Path(latest.stdout.strip()).name
    assert "supervised by" in bench.lastgood("status", str(bench.directory)).stdout
    assert 0 == bench.lastgood("verify", str(bench.directory)).returncode


def test_no_torch_in_the_supervisor(bench: Bench) -> None:
    """The supervisor never imports what it judges."""
    process = bench.start(*bench.command("--steps=10000"))
    bench.wait_for("trainer.progressed")
    maps = Path(f"/proc/{process.pid}/maps").read_text()

    assert "libtorch" not in maps
    assert sys.executable.split("/")[-1][:6] in maps or "python" in maps


def test_a_damaged_run_file_is_named_not_guessed(bench: Bench) -> None:
    """What must last and is damaged is a person's business: one line, exit 2, nothing started."""
    assert 0 == bench.run("--steps=10")
    (bench.directory / ".lastgood" / "run.json").write_text("{")
    done = bench.lastgood(*bench.command("--steps=20"))

    assert (2, 1) == (done.returncode, len(done.stderr.strip().splitlines()))
    assert "run.json" in done.stderr
    assert "remove it" in done.stderr


def test_every_record_is_in_the_catalogue_with_just_its_fields(bench: Bench) -> None:
    """What a run writes is what the catalogue says."""
    from supervisor.records import CATALOGUE

    bench.run("--steps=20", "--habit=die:12", sets=("run.final_step=20", "checkpoints.keep.last=2"))
    flip_bit(bench.directory / "step_20.pt", 2000)
    bench.run("--steps=30", sets=("run.final_step=30",))
    common = {"event", "level", "timestamp", "run", "run_id", "incarnation", "seq"}
    lines = (bench.directory / ".lastgood" / "events.jsonl").read_text().splitlines()
    for entry in map(json.loads, lines):
        assert common | set(CATALOGUE[entry["event"]].fields) == entry.keys(), entry["event"]
    assert len({json.loads(line)["event"] for line in lines}) >= 12


def test_a_copy_of_the_directory_leaves_the_originals_trainer_alone(bench: Bench) -> None:
    """Supervising a copy ends nothing of the original."""
    import shutil

    process = bench.start(*bench.command("--steps=10000"))
    bench.wait_for("trainer.progressed")
    original = bench.directory
    shutil.copytree(original, bench.folder / "copy", ignore=shutil.ignore_patterns("*.partial-*", "*.tmp"))
    bench.directory = bench.folder / "copy"
    assert 0 == bench.run("--steps=30", sets=("run.final_step=30",))
    bench.directory = original

    assert process.poll() is None
    assert [] == bench.records("trainer.exited")


@pytest.mark.parametrize("loss", ["run.json", "--new-run"])
def test_leftovers_are_found_by_their_directory(bench: Bench, loss: str) -> None:
    """A killed supervisor's detached processes are ended by the next one, whatever became of the run's id."""
    words = bench.command("--steps=30", "--habit=detach", sets=("run.final_step=30",))
    process = bench.start(*words)
    bench.wait_for("trainer.progressed")
    process.kill()
    process.wait()
    until(lambda: len(marked(bench.folder)) == 3)
    if loss == "run.json":
        (bench.directory / ".lastgood" / "run.json").unlink()
    else:
        words = [words[0], "--new-run", *words[1:]]

    assert 0 == bench.lastgood(*words).returncode
    assert 3 == len(bench.records("trainer.leftover_ended")[0]["pids"])


def test_what_a_shell_started_before_it_became_the_supervisor_lives_on(bench: Bench) -> None:
    """`sh -c 'tensorboard & exec lastgood run ...'`: the other child is not the run's."""
    words = bench.command("--steps=10", sets=("run.final_step=10",))
    quoted = " ".join(f"'{word}'" for word in words)
    line = f"sleep 61.5 & echo $! > other; exec '{sys.executable}' -m supervisor {quoted} > log"
    done = subprocess.run(["sh", "-c", line], cwd=bench.folder, timeout=60, check=False)
    other = int((bench.folder / "other").read_text())
    try:
        assert 0 == done.returncode
        assert Path(f"/proc/{other}").exists()
        assert [] == bench.records("trainer.leftover_ended")
    finally:
        os.kill(other, signal.SIGKILL)


def test_a_supervisor_that_lost_its_lock_file_takes_it_again(bench: Bench) -> None:
    """With its folder removed the supervisor makes it anew, and a second one is still refused."""
    process = bench.start(*bench.command("--steps=10000"))
    bench.wait_for("trainer.progressed")
    (bench.directory / ".lastgood").rename(bench.folder / "gone")
    until(lambda: (bench.directory / ".lastgood" / "run.json").exists())

    assert 7 == bench.lastgood(*bench.command("--steps=10000")).returncode
    assert process.poll() is None
    assert ["0"] == bench.starts()


def test_a_supervisor_whose_directory_was_taken_ends(bench: Bench) -> None:
    """When another supervisor has the lock by now, this one ends its trainer, says why, and leaves alone what is the other's."""
    first = bench.start(*bench.command("--steps=10000", sets=("checkpoints.rescan_seconds=3",)))
    bench.wait_for("trainer.progressed")
    until(lambda: bench.state("status.json")["trainer_pid"])
    (bench.directory / ".lastgood").rename(bench.folder / "gone")
    second = bench.start(*bench.command("--steps=10000"))
    assert 143 == first.wait(30)
    bench.wait_for("trainer.progressed")

    assert second.poll() is None
    assert f"supervised by process {second.pid}" in bench.records("supervisor.lock_lost")[0]["reason"]
    told = bench.records("trainer.spawned")
    assert 1 == len(told)
    assert f"PPid:\t{second.pid}" in Path(f"/proc/{told[0]['pid']}/status").read_text().splitlines()
    assert "run" == bench.state("wanted.json")["wanted"]
    assert second.pid == bench.state("run.json")["supervisor"][0]
    until(lambda: bench.state("status.json")["supervisor_pid"] == second.pid)
    time.sleep(2 * STATUS_SECONDS)
    assert (second.pid, told[0]["pid"]) == (
        bench.state("status.json")["supervisor_pid"],
        bench.state("status.json")["trainer_pid"],
    )


def test_one_odd_file_ends_no_supervisor(bench: Bench) -> None:
    """An archive with a compression gone wrong, and a pipe in a seal's place: judged, and the run goes on."""
    import zipfile

    assert 0 == bench.run("--steps=10")
    odd = bench.directory / "step_999.npz"
    with zipfile.ZipFile(odd, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", bytes(range(256)) * 100)
    data = bytearray(odd.read_bytes())
    data[60:80] = bytes(20)
    odd.write_bytes(data)
    os.mkfifo(bench.directory / "step_10.pt.sha256")

    assert 0 == bench.run("--steps=20", sets=("run.final_step=20",))
    assert ["0", "10"] == bench.starts()


def test_what_killed_processes_left_half_done_goes_at_the_next_start(bench: Bench) -> None:
    """Partials of the dead and seals of what is gone take no space for ever; a stranger's unfinished file stays."""
    assert 0 == bench.run("--steps=10")
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    partial, state = f"partial-{dead.pid}-0123abcd", bench.directory / ".lastgood"
    left = [
        bench.directory / f".step_5.pt.{partial}",
        state / f".wanted.json.{partial}",
        state / "seals" / f".step_5.pt.json.{partial}",
        state / "seals" / "step_4.pt.json",
    ]
    stays = bench.directory / "step_99.pt.tmp"
    for path in (*left, stays):
        path.write_text("half")

    assert 0 == bench.run("--steps=20", sets=("run.final_step=20",))
    assert ([], True) == ([path for path in left if path.exists()], stays.exists())
    assert ["0", "10"] == bench.starts()


def test_snapshots_do_not_pile_up_over_deaths(bench: Bench) -> None:
    """Retention keeps its number however often the trainer dies."""
    process = bench.start(*bench.command("--steps=10000", "--pause=0.01", sets=("checkpoints.keep.last=2",)))
    for number in range(1, 6):
        bench.wait_for("trainer.spawned", number)
        seen = len(bench.records("trainer.progressed"))
        bench.wait_for("trainer.progressed", seen + 4)
        os.kill(bench.records("trainer.spawned")[number - 1]["pid"], signal.SIGKILL)
    bench.wait_for("trainer.spawned", 6)
    bench.wait_for("trainer.progressed", len(bench.records("trainer.progressed")) + 4)

    assert len(list(bench.directory.glob("*.pt"))) <= 5
    process.terminate()


def test_adopted_processes_are_collected(bench: Bench) -> None:
    """A trainer that forks short jobs twice leaves no zombies behind."""
    script = bench.folder / "forker.py"
    script.write_text(
        "import os, time\nfor step in range(1, 200):\n    if os.fork() == 0:\n        os.fork()\n        os._exit(0)\n"
        "    os.wait()\n    print('step', step, flush=True)\n    time.sleep(0.01)\ntime.sleep(30)\n"
    )
    words = bench.command()
    process = bench.start(*words[: words.index("--") + 1], sys.executable, str(script))
    until(
        lambda: (
            "step 199" in (bench.directory / ".lastgood" / "trainer.log").read_text()
            if (bench.directory / ".lastgood" / "trainer.log").exists()
            else False
        )
    )

    def zombies() -> int:
        stats = [Path(f"/proc/{name}/stat") for name in os.listdir("/proc") if name.isdigit()]
        fields = [_stat(path) for path in stats]
        return len([one for one in fields if one[:1] == ["Z"] and one[1:2] == [str(process.pid)]])

    until(lambda: zombies() <= 1)


def _stat(path: Path) -> list[str]:
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def test_starting_from_nothing_after_steps_were_told_is_said(bench: Bench) -> None:
    """Snapshots under names that nobody recognises cost the steps, and a warning says so."""
    sets = ("run.final_step=20", "checkpoints.pattern=other_{step}.pt")
    assert 4 == bench.run("--steps=20", "--habit=always-die:12", sets=sets)
    assert ["0"] * 5 == bench.starts()

    assert 4 == len(bench.records("run.started_over"))
    assert "warning" == bench.records("run.started_over")[0]["level"]


def test_files_of_other_formats_are_not_called_corrupt(bench: Bench) -> None:
    """JSON under a torch suffix is unproven until it is outlived, and resumed from when nothing better is left."""
    script = bench.folder / "json_trainer.py"
    script.write_text(
        "import json, os, sys, time\n"
        "resumed = os.environ.get('LASTGOOD_RESUME_FROM')\n"
        "step = json.load(open(resumed))['step'] if resumed else 0\n"
        "open('starts.txt', 'a').write(f'{step}\\n')\n"
        "while step < 12:\n"
        "    step += 1\n"
        "    time.sleep(0.4)\n"
        "    print('step', step, flush=True)\n"
        "    if step % 3 == 0:\n"
        "        json.dump({'step': step}, open(f'checkpoints/step_{step}.ckpt.tmp', 'w'))\n"
        "        os.replace(f'checkpoints/step_{step}.ckpt.tmp', f'checkpoints/step_{step}.ckpt')\n"
        "    if step == 8 and not resumed:\n"
        "        os.kill(os.getpid(), 9)\n"
    )
    words = bench.command(sets=("run.final_step=12",), resume="env")
    done = bench.lastgood(*words[: words.index("--") + 1], sys.executable, str(script))

    assert 0 == done.returncode, done.stdout
    assert ["0", "6"] == (bench.folder / "starts.txt").read_text().split()
    assert [] == bench.records("snapshot.quarantined")
