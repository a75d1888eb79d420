"""Mutants of what a run waits for: room on the disk, and its GPU."""

from tests.mutants.laboratory import Mutant

CORE = "tests/core/test_hindrances.py"
SPACE = "tests/adapters/test_space.py"
GPU = "tests/adapters/test_gpu.py"

WAITING = [
    Mutant(
        "a start on a full disk",
        "supervisor/core/selecting.py",
        "    if event.hindrance is not None:\n        if state.wait",
        "    if False and event.hindrance is not None:\n        if state.wait",
        (f"{CORE}::test_a_start_waits_for_what_stands_in_its_way",),
        "Trainer after trainer would die in its first save, and each would cost a loading.",
    ),
    Mutant(
        "a full disk by the trainer's words alone",
        "supervisor/core/causes.py",
        '    return "out-of-disk" if says_so and measured else None',
        '    return "out-of-disk" if says_so else None',
        (f"{CORE}::test_a_death_is_laid_to_the_machine_on_evidence_only",),
        "Whoever prints the words, as for a limit of inotify, would be restarted for ever.",
    ),
    Mutant(
        "good bytes go from quarantine",
        "supervisor/adapters/space.py",
        "    if verdict.kind in broken:\n        return name\n",
        "    return name\n",
        (f"{SPACE}::test_whole_snapshots_stay_in_quarantine",),
        "A snapshot that was only suspected could not be put back, and a good one would be gone for good.",
    ),
    Mutant(
        "other people's processes are waited for",
        "supervisor/adapters/gpu.py",
        "_holders(nvml, uuid) & self._dead)",
        "_holders(nvml, uuid))",
        (f"{GPU}::test_other_processes_are_no_business_of_ours",),
        "In a container, where NVML tells pids of outside, a shared GPU would never seem free.",
    ),
]
