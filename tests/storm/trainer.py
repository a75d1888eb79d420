"""A trainer for the storm: quick to start, a few processes of its own, every snapshot's bytes known in advance.

python trainer.py DIR MARK FINAL_STEP (sealed | plain) (given | self) [--from=SNAPSHOT]

It stops at the places that the plan beside DIR names, until it is killed there, and tells in a journal, durably, what it
resumed from and which saves it takes for made. It imports nothing of the product but what saves.
"""

import fcntl
import hashlib
import io
import json
import os
import signal
import sys
import time
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO

EVERY = 3
STEP_SECONDS = 0.008
SIZE_BYTES = 12_000
PATIENCE_SECONDS = 30.0


def content(step: int) -> bytes:
    """The snapshot of a step, the same whoever saves it and whenever: an archive as torch lays it out."""
    noise = b"".join(hashlib.sha256(f"{step}-{block}".encode()).digest() for block in range(SIZE_BYTES // 32))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, data in (("ck/data.pkl", json.dumps({"step": step}).encode()), ("ck/data/0", noise)):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return made.getvalue()


def step_of(name: str) -> int:
    """The step in a snapshot's name; -1 when it is none."""
    number = name.removeprefix("ckpt_").removesuffix(".pt")
    return int(number) if name == f"ckpt_{number}.pt" and number.isdigit() else -1


def name_of(step: int) -> str:
    """The name of a step's snapshot."""
    return f"ckpt_{step:08d}.pt"


def is_good(folder: str, step: int) -> bool:
    """Whether the snapshot of a step is there with just the bytes it was made of."""
    try:
        with open(os.path.join(folder, name_of(step)), "rb") as file:
            return file.read() == content(step)
    except OSError:
        return False


def newest_good(folder: str) -> int:
    """The highest step whose snapshot is good; 0 when there is none."""
    steps = sorted((step_of(name) for name in os.listdir(folder)), reverse=True)
    return next((step for step in steps if step > 0 and is_good(folder, step)), 0)


def tell(place: str, **what: Any) -> None:
    """Append a line to the journal, and return once it is durable."""
    with open(os.path.join(place, "journal.jsonl"), "ab", buffering=0) as file:
        file.write(json.dumps(what).encode() + b"\n")
        os.fsync(file.fileno())


class Plan:
    """The blows to come, and which is next."""

    def __init__(self, place: str) -> None:
        self._place = place
        with open(os.path.join(place, "plan.json"), encoding="utf-8") as file:
            self._blows: list[dict[str, Any]] = json.load(file)

    def next(self) -> dict[str, Any] | None:
        """The first blow that was not dealt yet."""
        return next((blow for blow in self._blows if not self._is_there("dealt", blow)), None)

    def here(self, step: int, stage: str) -> None:
        """Say that the next blow's place is reached, if this is it, and wait to be killed there."""
        blow = self.next()
        if blow is None or self._is_there("reached", blow):
            return
        passed = stage == "acked" and step > blow["at_step"]  # a place that this life does not come by
        if not passed and (stage != blow["stage"] or (stage != "start" and step < blow["at_step"])):
            return
        said = os.path.join(self._place, f".reached-{blow['number']}")
        with open(said, "w", encoding="utf-8") as file:
            json.dump({"pid": os.getpid(), "supervisor": os.getppid(), "stage": stage, "life": life()}, file)
        os.replace(said, os.path.join(self._place, f"reached-{blow['number']}"))
        until = time.monotonic() + PATIENCE_SECONDS
        while blow["waits"] and self.next() == blow and time.monotonic() < until:
            time.sleep(0.005)
        while blow["waits"] and blow["kind"] != "rival" and time.monotonic() < until:
            time.sleep(0.005)

    def _is_there(self, word: str, blow: dict[str, Any]) -> bool:
        return os.path.exists(os.path.join(self._place, f"{word}-{blow['number']}"))


def life() -> str:
    """The incarnation, as the supervisor told it."""
    return os.environ["LASTGOOD_INCARNATION"]


def breed(mark: str, wiped: bool) -> None:
    """Children that outlive their parent if nobody ends them: in its session, out of it, and without its environment."""
    for kind in ("fork", "setsid", "daemon", *(("wiped",) if wiped else ())):
        if os.fork() != 0:
            continue
        if kind != "fork":
            os.setsid()
        if kind in ("daemon", "wiped") and os.fork() != 0:
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if kind == "wiped":
            words = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(120)", mark, f"of={life()}"]
            os.execve(sys.executable, words, {})
        time.sleep(120)
        os._exit(0)


def save_plainly(folder: str, step: int, halfway: Callable[[], None]) -> None:
    """As most trainers do: another name, then a rename; no seal."""
    path = os.path.join(folder, name_of(step))
    with open(f"{path}.tmp", "wb", buffering=0) as file:
        write(file, step, halfway)
    os.replace(f"{path}.tmp", path)


def write(file: BinaryIO, step: int, halfway: Callable[[], None]) -> None:
    """The bytes of a step, in two halves."""
    data = content(step)
    file.write(data[: len(data) // 2])
    halfway()
    file.write(data[len(data) // 2 :])


def save(folder: str, place: str, plan: Plan, step: int, sealed: bool) -> None:
    """Save, with a stage before each call that makes something durable or visible, and tell that it is made."""
    counts = {"fsync": 0, "replace": 0}
    real = {"fsync": os.fsync, "replace": os.replace}

    def staged(name: str) -> Callable[..., None]:
        def call(*arguments: Any, **more: Any) -> None:
            counts[name] += 1
            plan_real(f"{name}-{counts[name]}")
            real[name](*arguments, **more)

        return call

    def plan_real(stage: str) -> None:
        os.fsync, os.replace = real["fsync"], real["replace"]  # the plan's own calls are no stages
        try:
            plan.here(step, stage)
        finally:
            os.fsync, os.replace = staged("fsync"), staged("replace")

    os.fsync, os.replace = staged("fsync"), staged("replace")
    try:
        if sealed:
            from lastgood.publish import publish

            publish(os.path.join(folder, name_of(step)), lambda file: write(file, step, lambda: plan_real("half")))
        else:
            save_plainly(folder, step, lambda: plan_real("half"))
    finally:
        os.fsync, os.replace = real["fsync"], real["replace"]
    plan.here(step, "published")
    tell(place, ack=step)
    plan.here(step, "acked")


def main() -> None:
    """Train on nothing."""
    folder, mark, final, how, finds = sys.argv[1:6]
    place = os.path.dirname(folder)
    # Held by what is forked too: whoever of an earlier life is still there keeps it.
    alone = os.open(os.path.join(place, "alone"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        tell(place, double=life())
        sys.exit("another trainer, or what it left, is still there")
    given = next((word[7:] for word in sys.argv[6:]), os.environ.get("LASTGOOD_RESUME_FROM", ""))
    newest = newest_good(folder)
    if finds == "self":
        found = max((step_of(name) for name in os.listdir(folder)), default=-1)
        given = os.path.join(folder, name_of(found)) if found > 0 else ""
    step = step_of(os.path.basename(given)) if given else 0
    good = not given or (os.path.dirname(given) == folder and is_good(folder, step))
    tell(place, start=step, life=int(life()), pid=os.getpid(), good=good, newest=newest)
    plan = Plan(place)
    blow = plan.next()
    breed(mark, wiped=blow is not None and blow["wiped"])
    plan.here(step, "start")
    while step < int(final):
        time.sleep(STEP_SECONDS)
        step += 1
        print(f"step {step}: loss {4 / step:.4f}", flush=True)
        plan.here(step, "step")
        if step % EVERY == 0:
            save(folder, place, plan, step, how == "sealed")


if __name__ == "__main__":
    main()
