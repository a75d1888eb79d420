"""Mutants of the supervisor's own end, of its own files, and of the settings that it reads again."""

from tests.mutants.laboratory import Mutant

END_TO_END = "tests/end_to_end/test_own_end.py"

OWN_END = [
    Mutant(
        "a supervisor that died with its trainer is forgotten",
        "supervisor/core/selecting.py",
        "    elif state.memory.open:\n",
        "    elif False:\n",
        ("tests/core/test_supervisor_lost.py::test_supervisors_lost_again_and_again_end_the_run",),
        "A trainer whose memory gets both killed would be started for ever.",
    ),
    Mutant(
        "a trainer starts before its start is on the disk",
        "supervisor/runtime.py",
        "        self._files.after(lambda: self._memory.after(lambda: self._start(order)))\n",
        "        self._start(order)\n",
        (f"{END_TO_END}::test_a_start_is_on_the_disk_before_the_trainer_is_there",),
        "A supervisor that died with that trainer would not know that there had been one.",
    ),
    Mutant(
        "the loop waits for the disk",
        "supervisor/memory_side.py",
        "        self._worker.submit(self._write_newest, must=True)\n",
        "        self._write_newest()\n",
        (f"{END_TO_END}::test_a_stop_is_answered_while_a_start_waits_for_a_slow_disk",),
        "On a slow disk a stop would be answered late.",
    ),
    Mutant(
        "what must be written is dropped at the end",
        "supervisor/mailbox.py",
        "            if must or not self._closed:\n",
        "            if not self._closed:\n",
        ("tests/supervisor/test_memory_side.py::test_closing_writes_all_that_was_ordered",),
        "A run that is done would begin again at the next start.",
    ),
    Mutant(
        "records are dropped when their file is turned over",
        "supervisor/jsonl.py",
        "        os.rename(path, older(path))\n",
        "        os.unlink(path)\n",
        ("tests/adapters/test_journal.py::test_the_file_is_turned_over_at_its_limit",),
        "What happened before would be gone all at once.",
    ),
    Mutant(
        "a reload takes over what the supervisor was built on",
        "supervisor/reloading.py",
        "    return other_kind and key in AT_NEXT_START\n",
        "    return False\n",
        ("tests/supervisor/test_reloading.py::test_what_the_supervisor_was_built_on_needs_a_restart",),
        "Another kind of trainer would be started over a directory that is watched as the old one's.",
    ),
]
