"""Kills of trainer, tree and supervisor, placed by a seed, on real processes and real files; and who watches what follows.

One life of a run is one checkpoint directory and a plan of blows. A supervisor that was killed is started again at once, as
a service manager would. What must hold is judged here without the product: by bytes known in advance (`trainer.content`),
by the journal that the trainer keeps, and by looking at /proc all the while.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.storm import trainer

TRAINER = Path(trainer.__file__)
DEADLY = ("leader", "tree", "supervisor", "leader-then-supervisor", "damage", "damage-then-supervisor")
KINDS = (*DEADLY, "rival")
WEIGHTS = (6, 5, 4, 2, 2, 1, 0)
SEALED_STAGES = (
    "start",
    "step",
    "half",
    "fsync-1",
    "fsync-2",
    "fsync-3",
    "replace-1",
    "replace-2",
    "published",
    "acked",
)
PLAIN_STAGES = ("start", "step", "half", "replace-1", "published", "acked")
REACH_SECONDS = 40.0
END_SECONDS = 60.0
SAMPLE_SECONDS = 0.01
QUICK = (
    *("checkpoints.settle_seconds=0.1", "checkpoints.rescan_seconds=0.5", "restarts.backoff_seconds=[0.02,0.1]"),
    *("restarts.without_progress=1000", "restarts.per_window=100000"),
)


@dataclass(frozen=True)
class Blow:
    """One thing done to the run: of which kind, at which step and stage of it, or so long after that."""

    number: int
    kind: str
    at_step: int
    stage: str
    waits: bool
    delay_seconds: float
    wiped: bool


@dataclass(frozen=True)
class Life:
    """One run: how its trainer saves and resumes, how many snapshots are kept (0: all), and what is done to it."""

    seed: int
    sealed: bool
    resume: str
    keep: int
    blows: tuple[Blow, ...]
    final_step: int


@dataclass
class Tally:
    """What was done and seen, over one life or many."""

    kills: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    rivals: int = 0
    samples: int = 0
    starts: int = 0
    acknowledged: int = 0
    violations: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add another life's."""
        self.kills += other.kills
        self.stages += other.stages
        self.rivals += other.rivals
        self.samples += other.samples
        self.starts += other.starts
        self.acknowledged += other.acknowledged
        self.violations += other.violations


def draw(seed: int, kills: int) -> Life:
    """The life of a seed: every kind of kill at least once where there is room for it, at steps that only grow."""
    chance = random.Random(seed)
    sealed, resume, keep = (
        chance.random() < 0.5,
        chance.choice(("--from={snapshot}", "env", "self")),
        chance.choice((0, 3)),
    )
    kinds = [*DEADLY[:kills], *chance.choices(KINDS, WEIGHTS, k=max(0, kills - len(DEADLY)))]
    chance.shuffle(kinds)
    kinds.insert(chance.randrange(1, len(kinds)), "rival")
    blows: list[Blow] = []
    at = trainer.EVERY
    for number, kind in enumerate(kinds):
        stage = chance.choice(SEALED_STAGES if sealed else PLAIN_STAGES)
        exact = chance.random() < 0.7 or kind == "rival"
        at += chance.randint(1, 4)
        if stage not in ("start", "step"):
            at += -at % trainer.EVERY
        wiped = kind in ("leader", "tree")  # what is left of a killed supervisor's would be found only in a cgroup
        delay = chance.uniform(0, 0.06) if not exact or kind.endswith("-then-supervisor") else 0.0
        blows.append(Blow(number, kind, at, stage, exact, delay, wiped))
    return Life(seed, sealed, resume, keep, tuple(blows), at - at % trainer.EVERY + 5 * trainer.EVERY)


class Sampler(threading.Thread):
    """Looks at /proc all the while: no process of one incarnation may live beside one of another."""

    def __init__(self, mark: str) -> None:
        super().__init__(daemon=True)
        self._mark = mark.encode()
        self._over = threading.Event()
        self.samples = 0
        self.seen: list[str] = []

    def run(self) -> None:
        """Look until told to end."""
        while not self._over.wait(SAMPLE_SECONDS):
            self.samples += 1
            lives: dict[int, list[tuple[int, bytes]]] = {}
            for pid, birth, number in self.alive():
                lives.setdefault(number, []).append((pid, birth))
            if len(lives) > 1:
                self._judge(lives)

    def _judge(self, lives: dict[int, list[tuple[int, bytes]]]) -> None:
        """The look was not atomic: what is of an older life counts only if it lives still, now that the younger was seen."""
        youngest = max(lives)
        old = [(pid, n) for n, pids in lives.items() if n < youngest for pid, birth in pids if _birth(pid) == birth]
        said = f"incarnation {youngest} was alive beside (pid, incarnation) {old}"
        if old and said not in self.seen:
            self.seen.append(said)

    def end(self) -> None:
        """Look no more."""
        self._over.set()
        self.join()

    def alive(self) -> list[tuple[int, bytes, int]]:
        """Every live process of a trainer, by the mark among its words: pid, birth, incarnation."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and self._mark in (words := _read(f"/proc/{name}/cmdline")):
                birth = _birth(int(name))
                number = _incarnation(words, _read(f"/proc/{name}/environ"))
                if number is not None and birth is not None:
                    found.append((int(name), birth, number))
        return found


def _incarnation(words: bytes, environment: bytes) -> int | None:
    """Of which incarnation a process is; None for the supervisor, which has the mark among its words too."""
    told = [word[3:] for word in words.split(b"\0") if word.startswith(b"of=")]
    name = b"LASTGOOD_INCARNATION="
    told += [word[len(name) :] for word in environment.split(b"\0") if word.startswith(name)]
    return int(told[0]) if told and told[0].isdigit() else None


def _birth(pid: int) -> bytes | None:
    """When a process was born, in ticks, or None when it is dead or a zombie."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in (b"Z", b"X") else None


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""  # it has just ended


class Storm:
    """One life, in a folder of its own."""

    def __init__(self, folder: Path, life: Life) -> None:
        self.life = life
        self.tally = Tally()
        self._folder = folder
        self.directory = folder / "checkpoints"
        self.directory.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps([asdict(blow) for blow in life.blows]))
        self.mark = f"storm-{uuid.uuid4().hex}"
        self._sampler = Sampler(self.mark)
        self._supervisor = self._started()
        self._killed: list[tuple[Blow, int]] = []

    def run(self) -> Tally:
        """Deal every blow, let the run complete, and judge."""
        self._sampler.start()
        try:
            for blow in self.life.blows:
                self._deal(blow)
            self._wait(lambda: self._supervisor.poll() is not None, "the run to end", END_SECONDS)
            left = [pid for pid, _, _ in self._sampler.alive()]
            if left:
                self._wrong(f"processes {left} are left of a run that has ended")
            self.judge()
        except _Over as error:
            self._wrong(str(error))
        finally:
            self._clear()
        return self.tally

    def _clear(self) -> None:
        self._sampler.end()
        self.tally.samples = self._sampler.samples
        for what in self._sampler.seen:
            self._wrong(what)
        if self._supervisor.poll() is None:
            self._supervisor.kill()
            self._supervisor.wait()
        for pid, _, _ in self._sampler.alive():
            _kill(pid)

    def _wrong(self, what: str) -> None:
        self.tally.violations.append(f"seed {self.life.seed}: {what}")

    def _words(self) -> list[str]:
        life, folder = self.life, str(self.directory)
        words = [sys.executable, "-m", "supervisor", "run", "--checkpoints", folder, "--resume", life.resume]
        for one in (*QUICK, f"run.final_step={life.final_step}", f"checkpoints.keep.last={life.keep}"):
            words += ["--set", one] if one != "checkpoints.keep.last=0" else []
        how = ["sealed" if life.sealed else "plain", "self" if life.resume == "self" else "given"]
        return [*words, "--", sys.executable, str(TRAINER), folder, self.mark, str(life.final_step), *how]

    def _started(self) -> subprocess.Popen[bytes]:
        with (self._folder / "supervisor.log").open("ab") as log:
            return subprocess.Popen(self._words(), cwd=self._folder, stdout=log, stderr=log)

    def _wait(self, condition: Callable[[], Any], what: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if (status := self._supervisor.poll()) is not None and what != "the run to end":
                raise _Over(f"the supervisor ended with {status} while waiting for {what}: {self._last_words()}")
            if time.monotonic() > until:
                raise _Over(f"waited {seconds} s for {what}: {self._last_words()}")
            time.sleep(0.002)

    def _last_words(self) -> str:
        return _read(str(self._folder / "supervisor.log"))[-1500:].decode(errors="replace")

    def _deal(self, blow: Blow) -> None:
        """Wait for a blow's place, and do it."""
        at = self._reached(blow)
        if not blow.waits:
            time.sleep(blow.delay_seconds)
        if blow.kind == "rival":
            self._send_rival()
            (self._folder / f"dealt-{blow.number}").touch()  # the trainer has waited for this, and goes on
            return
        (self._folder / f"dealt-{blow.number}").touch()
        self.tally.stages[at["stage"] if blow.waits else "by time"] += 1
        pid = int(at["pid"])
        match blow.kind:
            case "leader":
                _kill(pid)
            case "tree":
                self._kill_tree()
            case "supervisor":
                self._kill_supervisor()
            case "leader-then-supervisor":
                _kill(pid)
                time.sleep(blow.delay_seconds)
                self._kill_supervisor()
            case _:
                self._damage(pid)
        if blow.kind == "damage-then-supervisor":
            time.sleep(blow.delay_seconds)
            self._kill_supervisor()
        self._wait(lambda: _birth(pid) is None, f"the death of {pid}", 10)
        self.tally.kills[blow.kind] += 1
        self._killed.append((blow, int(at["life"])))

    def _reached(self, blow: Blow) -> dict[str, Any]:
        """Where the trainer is when a blow's place is reached; not one that a blow before has killed meanwhile."""
        path = self._folder / f"reached-{blow.number}"
        while True:
            self._wait(path.exists, f"the place of {blow}", REACH_SECONDS)
            at: dict[str, Any] = json.loads(path.read_text())
            if at["supervisor"] == self._supervisor.pid and _birth(at["pid"]) is not None:
                return at
            path.unlink()

    def _journal(self) -> list[dict[str, Any]]:
        lines = _read(str(self._folder / "journal.jsonl")).split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def _kill_tree(self) -> None:
        for pid, _, _ in self._sampler.alive():
            _kill(pid)

    def _kill_supervisor(self) -> None:
        self._supervisor.kill()
        if (status := self._supervisor.wait()) != -signal.SIGKILL:
            raise _Over(f"the supervisor ended with {status} before it could be killed")
        self._supervisor = self._started()

    def _damage(self, pid: int) -> None:
        """Kill the trainer and cut its newest snapshot in half, or flip a bit of it, before the supervisor can look."""
        self._supervisor.send_signal(signal.SIGSTOP)
        _kill(pid)
        self._wait(lambda: _birth(pid) is None, f"the death of {pid}", 10)
        folder = str(self.directory)
        good = [step for step in map(trainer.step_of, os.listdir(folder)) if step > 0 and trainer.is_good(folder, step)]
        if len(good) >= 2:
            newest = max(good)
            trainer.tell(str(self._folder), damage=newest)
            path = self.directory / trainer.name_of(newest)
            if newest % 2:
                os.truncate(path, path.stat().st_size // 2)
            else:
                _flip(path)
        self._supervisor.send_signal(signal.SIGCONT)

    def _send_rival(self) -> None:
        """A second supervisor for the same directory: it must end with 7 while the first goes on."""
        done = subprocess.run(self._words(), cwd=self._folder, capture_output=True, timeout=30, check=False)
        self.tally.rivals += 1
        if done.returncode != 7:
            self._wrong(f"a second supervisor ended with {done.returncode}, not 7: {done.stderr[-300:]!r}")

    def judge(self) -> None:
        """What must be true once the run has ended."""
        if self._supervisor.returncode != 0:
            raise _Over(f"the run ended with {self._supervisor.returncode}: {self._last_words()}")
        if len(self._records("run.completed")) != 1:
            self._wrong("there is not one record of a completed run")
        if not trainer.is_good(str(self.directory), self.life.final_step):
            self._wrong("the snapshot of the final step is not there, or not good")
        self._judge_journal()
        self._judge_files()
        self._judge_deaths()

    def _judge_journal(self) -> None:
        """Every start went on from the newest good snapshot, which was no older than the newest acknowledged one."""
        acked: set[int] = set()
        for line in self._journal():
            if "ack" in line:
                acked.add(line["ack"])
                self.tally.acknowledged += 1
            elif "damage" in line:
                acked.discard(line["damage"])
            elif "double" in line:
                self._wrong(f"incarnation {line['double']} found another trainer, or what it left")
            else:
                self.tally.starts += 1
                if not line["good"]:
                    self._wrong(f"incarnation {line['life']} was given a bad snapshot of step {line['start']}")
                if line["start"] != line["newest"]:
                    self._wrong(f"incarnation {line['life']} began at {line['start']}, newest good: {line['newest']}")
                if line["newest"] < max(acked, default=0):
                    self._wrong(f"acknowledged {max(acked)} was lost before incarnation {line['life']}")
        last = sorted(acked)[-2:] if self.life.keep else sorted(acked)
        if lost := [step for step in last if not trainer.is_good(str(self.directory), step)]:
            self._wrong(f"healthy snapshots of steps {lost} are lost")

    def _judge_files(self) -> None:
        """Nothing good was set aside, and nothing half-written stays."""
        for path in (self.directory / ".lastgood" / "quarantine").glob("*/*.pt"):
            if trainer.is_good(str(path.parent), trainer.step_of(path.name)):
                self._wrong(f"{path} is good and was set aside")
        if left := [name for name in os.listdir(self.directory) if ".partial-" in name]:
            self._wrong(f"{left} were left half written")

    def _judge_deaths(self) -> None:
        """Every death of a trainer that a supervisor lived to see is put down to the signal that was sent."""
        told = {record["incarnation"]: record for record in self._records("trainer.exited")}
        for blow, number in self._killed:
            record = told.get(number)
            if record is None and blow.kind in ("leader", "tree", "damage"):
                self._wrong(f"the death of incarnation {number} by {blow.kind} was not recorded")
            elif record is not None and (record["cause"], record["signal"]) != ("killed", 9):
                self._wrong(f"the death by {blow.kind} was put down to {record['cause']}, signal {record['signal']}")

    def _records(self, event: str) -> list[dict[str, Any]]:
        files = sorted((self.directory / ".lastgood").glob("events.jsonl*"))
        lines = b"".join(path.read_bytes() for path in files).split(b"\n")
        return [entry for entry in map(json.loads, filter(None, lines)) if entry["event"] == event]


class _Over(Exception):
    """There is no use in going on with this life."""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _flip(path: Path) -> None:
    with path.open("r+b", buffering=0) as file:
        middle = path.stat().st_size // 2
        byte = os.pread(file.fileno(), 1, middle)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), middle)


def storm(folder: Path, seed: int, kills: int, lives: int) -> Tally:
    """So many kills over so many lives, drawn from consecutive seeds."""
    total = Tally()
    for number in range(lives):
        share = kills * (number + 1) // lives - kills * number // lives
        total.add(Storm(folder / f"life-{number}", draw(seed + number, share)).run())
    return total


def report(tally: Tally) -> str:
    """What was done, what was seen, and how much that says."""
    kills = sum(tally.kills.values())
    lines = [
        f"kills: {kills}, " + ", ".join(f"{kind} {count}" for kind, count in sorted(tally.kills.items())),
        "places: " + ", ".join(f"{stage} {count}" for stage, count in sorted(tally.stages.items())),
        f"starts: {tally.starts}; acknowledged saves: {tally.acknowledged}; second supervisors sent: {tally.rivals}; "
        f"looks at /proc: {tally.samples}",
        f"violations: {len(tally.violations)}",
    ]
    if not tally.violations and kills:
        lines.append(f"at 95 % confidence fewer than {3 / kills:.2%} of such kills break a promise (rule of three)")
    return "\n".join([*lines, *tally.violations])
