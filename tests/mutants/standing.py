"""Mutants about the next trainer, started in advance: when there is one, what it becomes, and what it must not be taken for."""

from tests.mutants.laboratory import Mutant

SIDE = "tests/supervisor/test_standing_by.py"
CHILD = "tests/adapters/test_standby.py"
REAL = "tests/end_to_end/test_standby.py"

STANDING = [
    Mutant(
        "a module beside the script is run in advance",
        "supervisor/adapters/standby_child.py",
        "        modules = [] if shadows(sys.path[0]) else modules\n",
        "",
        (f"{CHILD}::test_a_module_beside_the_script_that_others_would_import_is_not_run",),
        "A `profile.py` that the trainer never imports would run beside it.",
    ),
    Mutant(
        "one that waits with other variables is taken",
        "supervisor/standing_by.py",
        "if kind == self._kind and",
        "if kind is not None and self._kind is not None and kind.program == self._kind.program and",
        (f"{SIDE}::test_one_of_another_kind_is_ended",),
        "A changed OMP_NUM_THREADS would hold for no trainer that waited, and for any other.",
    ),
    Mutant(
        "one that is not ready is taken",
        "supervisor/standing_by.py",
        " and waiting.is_ready():\n",
        ":\n",
        (f"{SIDE}::test_one_that_is_not_ready_is_not_waited_for",),
        "An import that stands still would hold up the run, which a cold start would not.",
    ),
    Mutant(
        "memory is taken however short it is",
        "supervisor/standing_by.py",
        "_available_bytes() >= ENOUGH_BYTES",
        "_available_bytes() >= 0",
        (f"{SIDE}::test_memory_that_is_short_is_not_taken",),
        "The trainer would be killed for what only waits.",
    ),
    Mutant(
        "one that crashes is started again and again",
        "supervisor/standing_by.py",
        "            self._look_at = now + self._retry_seconds\n",
        "",
        (f"{SIDE}::test_one_that_dies_is_replaced_ever_more_slowly",),
        "A broken installation would take a core for good.",
    ),
    Mutant(
        "the sweep takes one that waits for a leftover",
        "supervisor/trainer_side.py",
        "        self.kin.own.append(lambda: self._standby.pids)\n",
        "",
        (f"{REAL}::test_a_trainer_that_dies_is_followed_by_the_one_that_waited",),
        "Every restart would be a cold one.",
    ),
    Mutant(
        "a pause keeps what waits",
        "supervisor/runtime.py",
        "            self._trainer.stand_down()\n",
        "            pass\n",
        (f"{REAL}::test_a_pause_frees_its_memory_too",),
        "Whoever paused the run for its memory would not get it.",
    ),
    Mutant(
        "what it becomes keeps the variables that it waited with",
        "supervisor/adapters/standby_child.py",
        '    for name in [name for name in os.environb if name.startswith(b"LASTGOOD_")]:\n        del os.environb[name]\n',
        "",
        (f"{CHILD}::test_the_command_tells_the_same_as_when_it_is_started_cold",),
        "A trainer would resume from what another incarnation was told.",
    ),
    Mutant(
        "what it becomes is another module than the main one",
        "supervisor/adapters/standby_child.py",
        'main = sys.modules["__main__"] = types.ModuleType("__main__")',
        'main = types.ModuleType("__main__")',
        (f"{CHILD}::test_the_command_tells_the_same_as_when_it_is_started_cold",),
        "Nothing that the script defines could be pickled.",
    ),
    Mutant(
        "what it became goes on being the first to go",
        "supervisor/adapters/standby_child.py",
        "    die_first(score)\n",
        "",
        (f"{CHILD}::test_the_command_tells_the_same_as_when_it_is_started_cold",),
        "Of two runs on a machine the kernel would end the one that has crashed before.",
    ),
]
