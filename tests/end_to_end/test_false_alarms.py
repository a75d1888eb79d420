"""Trainers that go on, however unevenly, are left alone. `ALARM_SECONDS=600 ALARM_RUNS=60` makes it ten hours of training."""

import os
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.end_to_end.test_misbehaving import scripted

SECONDS = float(os.environ.get("ALARM_SECONDS", "60"))
RUNS = int(os.environ.get("ALARM_RUNS", "20"))
START_SECONDS = 120.0  # until all of them have begun

UNEVEN = """
import os, random, sys, time
sys.path.insert(0, {folder!r})
from small_trainer import save
chance = random.Random({number})
pace = 0.02 * 50 ** chance.random()  # seconds a step: 0.02 to 1
folder = os.environ["LASTGOOD_CHECKPOINT_DIR"]
with open(os.path.join(folder, "starts.txt"), "a") as file:
    file.write("0\\n")
over, step = time.monotonic() + {seconds}, 0
while time.monotonic() < over:
    dice, step = chance.random(), step + 1
    if dice < 0.02:
        time.sleep(max(3.0, 4 * pace))  # an evaluation
    else:
        time.sleep(pace * (3 if dice < 0.1 else 0.5 + dice))
    print("step", step, flush=True)
    if step % 20 == 0:
        save(folder, step)
"""


@pytest.mark.heavy
@pytest.mark.timeout(SECONDS + 2 * START_SECONDS)
def test_trainers_that_go_on_are_left_alone(bench: Bench) -> None:
    """Slow steps, quick ones, evaluations, more of them at once than there are cores: not one is called stalled."""
    runs = [Bench(bench.folder / f"run{number}") for number in range(RUNS)]
    for number, run in enumerate(runs):
        run.folder.mkdir()
        text = UNEVEN.format(folder=str(Path(__file__).parents[1]), number=number, seconds=SECONDS)
        bench.started.append(run.start(*scripted(run, text, "stall.running_seconds=5", "checkpoints.keep.last=3")))

    assert [0] * RUNS == [process.wait(SECONDS + START_SECONDS) for process in bench.started]
    assert [] == [alarm for run in runs for alarm in run.records("trainer.stalled")]
    assert [["0"]] * RUNS == [run.starts() for run in runs]
    print(f"\n{RUNS * SECONDS / 3600:.2f} hours of training, no alarm")
