"""Faults again and again, and one during another: silence, crash loops, lost file events, a full disk in a fallback."""

import itertools
import json
import os
import shutil
import signal
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bench import Bench, until
from tests.conftest import flip_bit
from tests.crash import disks
from tests.crash.conftest import give_up
from tests.end_to_end.test_misbehaving import scripted

STANDING_STILL = """
import os, re, signal, sys, time
sys.path.insert(0, {folder!r})
from small_trainer import save
folder, how = os.environ["LASTGOOD_CHECKPOINT_DIR"], {how!r}
resumed = os.environ.get("LASTGOOD_RESUME_FROM", "")
step = int(os.path.basename(resumed)[5:-3]) if resumed else 0
for step in range(step + 1, step + 5):
    time.sleep(0.02)
    print("step", step, flush=True)
save(folder, step)
if step == {final}:
    sys.exit(0)
if how == "SIGSTOP":
    os.kill(os.getpid(), signal.SIGSTOP)
elif how == "sleep":
    time.sleep(600)
else:
    re.match("(a+)+$", "a" * 60 + "b")  # one call that holds the interpreter for longer than the universe is old
"""


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["SIGSTOP", "sleep", "regular expression"])
def test_fifty_times_silence_is_noticed_and_ended(bench: Bench, how: str) -> None:
    """Frozen, asleep or lost in one call: told within its deadline each time, never without cause, and the run completes."""
    text = STANDING_STILL.format(folder=str(Path(__file__).parents[1]), how=how, final=4 * 51)
    words = scripted(bench, text, "run.final_step=204", "stall.running_seconds=0.3")
    done = bench.lastgood(*words, timeout=250)

    assert 0 == done.returncode, done.stdout[-2000:]
    told = bench.records("trainer.stalled")
    assert 50 == len(told)
    assert {"running"} == {one["stage"] for one in told}
    assert 5.0 > max(one["seconds"] for one in told)
    assert list(range(4, 201, 4)) == [
        one["step"] for one in bench.records("trainer.exited") if one["cause"] == "stalled"
    ]


DYING = """
import os, sys, time
with open("started.txt", "a+") as file:
    resumed = os.path.basename(os.environ.get("LASTGOOD_RESUME_FROM", "")) or "-"
    file.write(f"{time.monotonic()} {resumed}\\n")
    file.seek(0)
    start = len(file.readlines())
if start in AT_ONCE:
    sys.exit("cannot go on, " + "x" * start)  # in other words each time
sys.path.insert(0, FOLDER)
import small_trainer
sys.argv[1:] = [os.environ["LASTGOOD_CHECKPOINT_DIR"], *WORDS]
small_trainer.main()
"""
LOOPS_EACH, STARTS_MAX, WITHIN_SECONDS = 7, 5, 10.0
APART = [0.8, 1.6, 3.2, 6.4, 12.8]  # a second, doubled each time, less a fifth at most
SOONER = [0.0, *APART]  # it had progressed before it died for the first time


@dataclass(frozen=True)
class Dying:
    """A trainer's words, the starts at which it dies before it reads them; how the run ends, the least time from each start to
    the next, and what each resumed from.
    """

    words: str
    at_once: range
    status: int
    apart: list[float]
    resumed: str

    def script(self) -> str:
        """The trainer."""
        text = DYING.replace("FOLDER", repr(str(Path(__file__).parents[1])))
        return text.replace("AT_ONCE", repr(self.at_once)).replace("WORDS", repr(self.words.split()))


NEVER, ALWAYS = range(0), range(1, 99)
DEATHS = {
    "at once": Dying("", ALWAYS, 4, APART, "- - - - - -"),
    "at its arguments": Dying("--steps=many", NEVER, 4, APART, "- - - - - -"),
    "at one step": Dying("--every=4 --habit=always-die:11", NEVER, 5, SOONER[:3], "- step_8.pt step_8.pt step_4.pt"),
    "at a snapshot": Dying("--habit=die:12 --habit=refuse", NEVER, 5, SOONER[:3], "- step_10.pt step_10.pt step_5.pt"),
    "of this and that": Dying("--steps=15 --habit=die:12", range(2, 6), 0, SOONER[:5], "-" + " step_10.pt" * 5),
}


@pytest.mark.heavy  # with the delays that people have
@pytest.mark.parametrize("dying", DEATHS.values(), ids=DEATHS.keys())
def test_the_starts_of_a_crash_loop_come_ever_more_slowly(bench: Bench, dying: Dying) -> None:
    """Never more than five in ten seconds, whatever it dies of, and what stays the same with an older snapshot ends the run."""
    sets = ("restarts.backoff_seconds=[1,300]", "restarts.without_progress=6", "run.final_step=15")
    loops = [Bench(bench.folder / f"loop{number}") for number in range(LOOPS_EACH)]
    for loop in loops:
        loop.folder.mkdir()
        bench.started.append(loop.start(*scripted(loop, dying.script(), *sets)))

    assert [dying.status] * LOOPS_EACH == [process.wait(90) for process in bench.started]
    for loop in loops:
        lines = [line.split() for line in (loop.folder / "started.txt").read_text().splitlines()]
        times = [float(at) for at, _ in lines]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert STARTS_MAX >= max(sum(at <= one < at + WITHIN_SECONDS for one in times) for at in times), times
        assert dying.resumed == " ".join(resumed for _, resumed in lines)
        assert [] == [gap for gap, least in zip(gaps, dying.apart, strict=True) if not least <= gap < least / 0.8 + 3.0]


TALKING = """
import time
for step in range(1, 100_000):
    print("step", step, flush=True)
    time.sleep(0.05)
"""
SETTLE_SECONDS, SLACK_SECONDS = 0.2, 1.0  # what is found is judged once it is still, on a busy machine
QUEUED_EVENTS = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


def snapshot(path: Path) -> Path:
    """An archive as torch lays it out."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ck/data.pkl", json.dumps({"name": path.name}))
        archive.writestr("ck/data/0", bytes(range(256)) * 40)
    return path


class Arrivals:
    """Ways in which a snapshot comes without anybody being told."""

    def __init__(self, bench: Bench, how: str, stack: ExitStack, rescan_seconds: float) -> None:
        self._bench = bench
        self._elsewhere = bench.folder / "elsewhere"
        self._elsewhere.mkdir()
        self._arrive: Callable[[str], None] = getattr(self, f"_{how}")
        bench.directory.mkdir()
        if how == "upper":
            if reason := disks.why_not():
                give_up(reason)
            for name in ("lower", "upper", "work"):
                (self._elsewhere / name).mkdir()
            layers = ",".join(f"{name}dir={self._elsewhere / name}" for name in ("lower", "upper", "work"))
            stack.enter_context(disks.mounted("overlay", "overlay", bench.directory, layers))
        words = scripted(bench, TALKING, f"checkpoints.rescan_seconds={rescan_seconds}", resume="never")
        self._supervisor = bench.start(*words)
        until(lambda: self._told("trainer.progressed") or self._told("trainer.spawned"))

    def seconds_until_found(self, step: int) -> float:
        """Have a snapshot arrive; how long it takes until it is judged."""
        self._arrive(f"step_{step}.pt")
        arrived = time.monotonic()
        until(lambda: any(one["step"] == step for one in self._told("snapshot.verified")), 10)
        return time.monotonic() - arrived

    def _told(self, event: str) -> list[dict[str, object]]:
        lines = (self._bench.folder / "supervisor-0.log").read_bytes().split(b"\n")[:-1]
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]

    def _staged(self, name: str) -> None:
        snapshot(self._elsewhere / name).rename(self._bench.directory / name)

    def _recreated(self, name: str) -> None:
        self._bench.directory.rename(self._bench.folder / "gone")
        shutil.rmtree(self._bench.folder / "gone")
        self._bench.directory.mkdir()
        snapshot(self._bench.directory / name)

    def _upper(self, name: str) -> None:
        snapshot(self._elsewhere / name).rename(self._elsewhere / "upper" / name)

    def _overflow(self, name: str) -> None:
        """More happens than the kernel keeps for a process that does not look; the snapshot comes last."""
        self._supervisor.send_signal(signal.SIGSTOP)
        try:
            for number in range(QUEUED_EVENTS // 2 + 1000):
                path = self._bench.directory / f"noise_{number}.tmp"
                path.touch()
                path.unlink()
            snapshot(self._bench.directory / name)
        finally:
            self._supervisor.send_signal(signal.SIGCONT)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is entered here is left when the test is over."""
    with ExitStack() as made:
        yield made


WAYS = ["staged", "recreated", "upper", "overflow"]


def arrive(bench: Bench, how: str, stack: ExitStack, rescan_seconds: float, directories: int, times: int) -> None:
    """Have so many snapshots arrive in each of so many directories at once; each is found within one rescan."""
    watched = []
    for number in range(directories):
        one = Bench(bench.folder / f"watched{number}")
        one.folder.mkdir()
        watched.append(Arrivals(one, how, stack, rescan_seconds))
        bench.started += one.started

    def took(arrivals: Arrivals) -> list[float]:
        return [arrivals.seconds_until_found(step) for step in range(1, times + 1)]

    with ThreadPoolExecutor(directories) as pool:
        found = list(pool.map(took, watched))
    for process in bench.started:
        process.terminate()
    assert [143] * directories == [process.wait(20) for process in bench.started]
    assert rescan_seconds + SETTLE_SECONDS + SLACK_SECONDS > max(map(max, found)), found


@pytest.mark.parametrize("how", WAYS)
def test_what_arrives_unseen_is_found_by_the_next_rescan(bench: Bench, how: str, stack: ExitStack) -> None:
    """Moved in, in a directory made anew, below an overlay, or after events were lost."""
    arrive(bench, how, stack, 1.0, 1, 1)


@pytest.mark.heavy
@pytest.mark.parametrize("how", WAYS)
def test_twenty_times_what_arrives_unseen_is_found(bench: Bench, how: str, stack: ExitStack) -> None:
    """Four times in each of five directories, which are looked at every five seconds as they are unless told otherwise."""
    arrive(bench, how, stack, 5.0, 5, 4)


def fill(at: Path) -> Path:
    """Leave no byte of a filesystem free."""
    filler = at / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def whole_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def test_a_disk_that_fills_during_a_fallback_loses_nothing(bench: Bench, tmp_path: Path) -> None:
    """The newest snapshot is bad and there is no room for a word: it falls back all the same, and goes on once there is."""
    if reason := disks.why_not():
        give_up(reason)
    with disks.mounted("small", "tmpfs", tmp_path / "small", "size=2m") as at:
        bench.directory = at / "checkpoints"
        assert 0 == bench.run("--steps=20")
        flip_bit(bench.directory / "step_20.pt", 2000)
        filler = fill(at)
        process = bench.start(*bench.command("--steps=30", "--pause=0.05", sets=("run.final_step=30",)))
        log = bench.folder / "supervisor-0.log"  # for its own file there is no room
        said = {"fallback.chosen", "disk.low", "snapshot.quarantined"}
        until(lambda: said <= {json.loads(line)["event"] for line in whole_lines(log)})
        assert (None, 0) == (process.poll(), shutil.disk_usage(at).free)
        assert not (bench.directory / "step_20.pt").exists()
        filler.unlink()

        assert 0 == process.wait(40)
        assert ["0", "15"] == bench.starts()
        assert {5, 10, 15, 20, 25, 30} == {int(path.stem[5:]) for path in bench.directory.glob("step_*.pt")}


@pytest.mark.parametrize("first", ["frozen", "damaged", "shut"])
def test_a_supervisor_killed_amid_another_fault_is_followed_by_one_that_goes_on(bench: Bench, first: str) -> None:
    """While its trainer stands still, while it falls back, while its log cannot be written: the next one loses nothing."""
    words = bench.command("--steps=25", "--pause=0.03", "--habit=detach", sets=("run.final_step=25",))
    process = bench.start(*words)
    until(lambda: len(list(bench.directory.glob("step_*.pt"))) >= 3)
    trainer = bench.records("trainer.spawned")[0]["pid"]
    match first:
        case "frozen":
            os.kill(trainer, signal.SIGSTOP)
        case "damaged":
            process.send_signal(signal.SIGSTOP)
            os.kill(trainer, signal.SIGKILL)
            newest = max(bench.directory.glob("step_*.pt"), key=lambda path: int(path.stem[5:]))
            os.truncate(newest, 100)
            process.send_signal(signal.SIGCONT)
            until(lambda: bench.records("fallback.chosen"))
        case "shut":
            (bench.directory / ".lastgood" / "trainer.log").unlink()
            (bench.directory / ".lastgood" / "trainer.log").mkdir()
    kept = {int(path.stem[5:]) for path in bench.directory.glob("step_*.pt") if path.stat().st_size > 100}
    process.kill()
    process.wait()

    assert 0 == bench.lastgood(*words).returncode
    assert kept <= {int(path.stem[5:]) for path in bench.directory.glob("step_*.pt")}
    assert int(bench.starts()[-1]) >= max(kept)
    assert 1 == len(bench.records("run.completed"))
