"""A trainer that takes its time: with its first save, or before it says anything.

python silent_trainer.py DIR [--save-seconds=N] [--mute-seconds=N] [--beat=FILE] [--from=SNAPSHOT]

It saves after each of four steps, as this software does: a partial with its pid in the name, then a rename.
"""

import json
import os
import sys
import time
import zipfile

STEPS = 4


def save(folder: str, step: int, seconds: float) -> None:
    """Write a snapshot, and stay within that for a while."""
    partial = os.path.join(folder, f".step_{step}.pt.partial-{os.getpid()}-{step:08x}")
    with zipfile.ZipFile(partial, "w") as archive:
        archive.writestr("ck/data.pkl", json.dumps({"step": step}))
        time.sleep(seconds)
        archive.writestr("ck/data/0", bytes(range(256)) * 40)
    os.replace(partial, os.path.join(folder, f"step_{step}.pt"))


def main() -> None:
    """Train on nothing, slowly the first time."""
    options = dict(word[2:].split("=", 1) for word in sys.argv[2:])
    folder = sys.argv[1]
    step = int(os.path.basename(options["from"])[5:-3]) if "from" in options else 0
    starts = os.path.join(folder, "starts.txt")
    first = not os.path.exists(starts)
    with open(starts, "a", encoding="utf-8") as file:
        file.write(f"{step}\n")
    quiet_until = time.monotonic() + float(options.get("mute-seconds", 0))
    while time.monotonic() < quiet_until:
        time.sleep(0.2)
        if "beat" in options:
            with open(options["beat"], "w", encoding="utf-8"):
                pass
    while step < STEPS:
        step += 1
        time.sleep(0.05)
        print(f"step {step}: loss 1.0", flush=True)
        save(folder, step, float(options.get("save-seconds", 0)) if first and step == 3 else 0.0)


if __name__ == "__main__":
    main()
