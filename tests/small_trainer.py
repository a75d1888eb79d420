"""A trainer that knows nothing of lastgood: JSON snapshots, a step line each tenth of a second or faster, and bad habits.

python small_trainer.py DIR [--from=SNAPSHOT] [--steps=N] [--every=N] [--pause=SECONDS] [--habit=NAME[:ARGUMENT]]...
"""

import json
import os
import signal
import sys
import time
import zipfile


def save(folder: str, step: int) -> None:
    """Publish a snapshot by rename; an archive with checksums, as torch makes them, without torch."""
    path = os.path.join(folder, f"step_{step}.pt")
    with zipfile.ZipFile(path + ".tmp", "w") as archive:
        archive.writestr("ck/data.pkl", json.dumps({"step": step}))
        archive.writestr("ck/data/0", bytes(range(256)) * 40)
    os.replace(path + ".tmp", path)


def fork_sleepers(detached: bool) -> None:
    """Children that outlive their parent, two of them out of its session."""
    for _ in range(3):
        if os.fork() == 0:
            if detached and os.fork() != 0:
                os._exit(0)
            if detached:
                os.setsid()
            time.sleep(300)
            os._exit(0)


def main() -> None:  # noqa: C901 - one bad habit a line
    options = dict(word[2:].split("=", 1) for word in sys.argv[2:] if word.startswith("--") and "habit" not in word)
    habits = dict((word.split("=", 1)[1] + ":").split(":")[:2] for word in sys.argv[2:] if word.startswith("--habit="))
    folder, steps, every = sys.argv[1], int(options.get("steps", 20)), int(options.get("every", 5))
    resumed = options.get("from", "") or os.environ.get("LASTGOOD_RESUME_FROM", "")
    if "self" in habits:
        found = [name for name in os.listdir(folder) if name.endswith(".pt")]
        resumed = max(found, key=lambda name: int(name[5:-3]), default="")
    step = int(os.path.basename(resumed)[5:-3]) if resumed and "ignore" not in habits else 0
    first = not os.path.exists(os.path.join(folder, "starts.txt"))
    with open(os.path.join(folder, "starts.txt"), "a", encoding="utf-8") as file:
        file.write(f"{step}\n")
    if "stubborn" in habits:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif "final" in habits:
        signal.signal(signal.SIGTERM, lambda *_: finish(folder, float(habits["final"] or 0)))
    if "fork" in habits:
        fork_sleepers(detached=False)
    if "detach" in habits:
        fork_sleepers(detached=True)
    if "lock" in habits:
        while os.path.exists(habits["lock"]):
            time.sleep(0.1)
        open(habits["lock"], "w", encoding="utf-8").close()
    if "garbage" in habits:
        os.write(1, b'\x88\xff\xc1\x1c\n\xed\xa0\x80\0\x1b[31m{"a": 1}\n' + b"x" * 300_000)
    if resumed and "refuse" in habits:
        sys.exit("RuntimeError: Weights only load failed")
    skipped = [tuple(map(int, one.split("-"))) for one in os.environ.get("LASTGOOD_SKIP_STEPS", "").split(",") if one]
    start = step
    while step < steps:
        time.sleep(float(options.get("pause", 0.02)))
        step += 1
        bad = "diverge" in habits and step >= int(habits["diverge"])
        bad = bad and not any(low <= int(habits["diverge"]) <= high for low, high in skipped)
        loss = 0.0001 if habits.get("best") == str(step) else 4 / step
        print(f"step {step}: loss {'nan' if bad else f'{loss:.4f}'}", flush=True)
        if step % every == 0:
            save(folder, step)
        if first and habits.get("die") == str(step):
            os.kill(os.getpid(), signal.SIGKILL)
        if habits.get("always-die") == str(step) or (habits.get("cursed") == str(start) and step == start + 2):
            sys.exit(f"RuntimeError: no luck at {time.time()}")
        if habits.get("hang") == str(step) and first:
            time.sleep(300)
        if habits.get("nothing") == str(step):
            sys.exit(0)


def finish(folder: str, seconds: float) -> None:
    """Take a while to save, then end as a trainer does that was asked to."""
    time.sleep(seconds)
    with open(os.path.join(folder, "final.txt"), "w", encoding="utf-8") as file:
        file.write("saved")
    os._exit(143)


if __name__ == "__main__":
    main()
