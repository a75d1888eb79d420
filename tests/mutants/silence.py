"""Mutants about silence: a save that is taken for a stall, evidence that holds up a kill, and what runs before a trainer."""

from tests.mutants.laboratory import Mutant

STALL = "tests/core/test_stall.py"
EVIDENCE = "tests/adapters/test_evidence.py"

SILENCE = [
    Mutant(
        "workers of the one who saves are taken for rivals",
        "supervisor/writing.py",
        "        if not any(_share(holder, other) for other in alone):\n",
        "        if True:\n",
        ("tests/supervisor/test_writing.py::test_who_shares_one_opening_of_a_file_is_no_rival",),
        "A DataLoader that forks in a save would alarm people about a second trainer that is not there.",
    ),
    Mutant(
        "a save is taken for silence",
        "supervisor/core/stall.py",
        "    if life.saving:\n",
        "    if False:\n",
        (STALL,),
        "A save that is slow would be killed in the middle, again at each try.",
    ),
    Mutant(
        "a save makes the running deadline longer",
        "supervisor/core/stall.py",
        "if life.signs and not life.saving else",
        "if life.signs else",
        (STALL,),
        "After one slow save a stall would be noticed five times as late.",
    ),
    Mutant(
        "the kill waits for the evidence",
        "supervisor/stalled.py",
        "        thread.join(EVIDENCE_SECONDS)\n",
        "        thread.join()\n",
        (f"{EVIDENCE}::test_evidence_that_takes_too_long_is_given_up",),
        "Storage that hangs would keep a stalled trainer alive for as long.",
    ),
    Mutant(
        "a failed command before a start is no reason not to start",
        "supervisor/trainer_side.py",
        "ended is not None and ended.code == 0 and",
        "ended is not None and",
        ("tests/supervisor/test_pre_start.py::test_no_trainer_follows_what_failed",),
        "A trainer would write into a mount that is not there.",
    ),
    Mutant(
        "the dead write on",
        "supervisor/leftovers.py",
        "if not is_abandoned and _pid_in",
        "if _pid_in",
        ("tests/supervisor/test_arrivals.py::test_the_living_writers_of_a_folder_are_found_by_their_partials",),
        "What a killed trainer left would stand for a save that never ends.",
    ),
]
