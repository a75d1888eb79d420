"""Supervisors that are broken on purpose do not pass a campaign, each for the reason that it should not.

They are real: a copy of the product with one place changed, over the bundled trainer, under real faults.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import ROOT
from tests.chaos.test_campaign import CONFIG
from tests.mutants.laboratory import COPIED, Mutant

SECONDS_MAX = 300

MUTANTS = {
    "skips verification": (
        Mutant(
            "skips verification",
            "lastgood/judging.py",
            "            verdict = _verify_once(name)\n",
            '            verdict = Verdict(Kind.HEALTHY, None, "looks fine", step=naming.step_in_name(os.path.basename(name)))\n',
            (),
            "The trainer would be given bytes that nobody has looked at.",
        ),
        "truncate",
        "resumed ckpt_",
    ),
    "chooses the second newest": (
        Mutant(
            "chooses the second newest",
            "supervisor/core/selecting.py",
            "        return notes.joined(notes.unproven_note(chosen), _spawn(state, chosen))\n",
            "        return notes.joined((), _spawn(state, choose(state.rungs[1:]) or chosen))\n",
            (),
            "A save interval of steps would be lost at each death.",
        ),
        "kill",
        "resumed ckpt_",
    ),
    "leaks a child": (
        Mutant(
            "leaks a child",
            "supervisor/trainer_side.py",
            "            left = self.kin.sweep(leader)\n",
            "            left: tuple[Identity, ...] = ()\n",
            (),
            "Two trainers' children would share a GPU.",
        ),
        "leak-a-grandchild",
        "was still there when the next trainer was started",
    ),
    "deletes in quarantine": (
        Mutant(
            "deletes in quarantine",
            "supervisor/adapters/places.py",
            "        os.rename(source, target)\n    except OSError:\n",
            "        os.rename(source, target)\n        os.remove(target)\n    except OSError:\n",
            (),
            "Nobody could find out any more what was wrong.",
        ),
        "truncate",
        "was not kept as it was",
    ),
    "starts fresh": (
        Mutant(
            "starts fresh",
            "supervisor/core/selecting.py",
            "    if policy.resume is Resume.NEVER:\n",
            "    if state.incarnation > 0:\n",
            (),
            "All that was trained would be trained again, over the good snapshots.",
        ),
        "kill",
        "started from nothing, not from ckpt_",
    ),
    "trusts a stale verdict": (
        Mutant(
            "trusts a stale verdict",
            "supervisor/adapters/verifier.py",
            "        if told is None or told.identity != rung.identity or",
            "        if told is None or",
            (),
            "What is damaged after it was judged would be resumed from.",
        ),
        "truncate",
        "resumed ckpt_",
    ),
}
"""By name: what is changed, the fault under which it shows, and what the campaign has to say of it."""


@pytest.mark.heavy
@pytest.mark.timeout(SECONDS_MAX + 60)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_supervisor_is_found_out(name: str, tmp_path: Path) -> None:
    """A check that cannot fail is worth nothing."""
    mutant, kind, finding = MUTANTS[name]
    place = tmp_path / "product"
    for folder in COPIED:
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    broken = place / mutant.file
    broken.write_text(mutant.applied(broken.read_text(encoding="utf-8")), encoding="utf-8")
    (place / "run.yaml").write_text(CONFIG.format(root=ROOT))
    words = [sys.executable, "-m", "supervisor", "chaos", "run.yaml", "--faults=3", "--seed=1", f"--kinds={kind}"]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    problems = [line for line in done.stdout.splitlines() if line.startswith("problem: ")]

    assert 1 == done.returncode, done.stdout + done.stderr
    assert [] != [line for line in problems if finding in line], done.stdout + done.stderr
    print(f"{name}: {next(line for line in problems if finding in line)}")


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_changed_is_there(name: str) -> None:
    """Once, and what comes of it is Python."""
    mutant = MUTANTS[name][0]

    compile(mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8")), mutant.file, "exec")
