"""Mutants of a restart on trust: bytes that were proven before, and are read again beside the trainer."""

from tests.mutants.laboratory import Mutant

CORE = "tests/core/test_trust.py"
VERIFIER = "tests/adapters/test_verifier.py"
MACHINE = "tests/core/test_invariants.py"

TRUSTING = [
    Mutant(
        "trust before the re-hash",
        "supervisor/core/trainer_life.py",
        "    if state.memory.trust is not None:\n        state = hold(state, rung)\n",
        "    if state.memory.trust is None and alive is None:\n        state = hold(state, rung)\n",
        (f"{CORE}::test_until_then_a_snapshot_is_a_life_sign_and_no_more",),
        "What was made of rotten bytes would be progress, and good old snapshots would be pruned for it.",
    ),
    Mutant(
        "rotten bytes are told and trained on",
        "supervisor/core/rereading.py",
        "trainer_life.end(state, Ending.REFUTED, now, policy) if _lives(state) else (state, ())",
        "(state, ())",
        (f"{CORE}::test_bad_bytes_end_the_trainer_at_once",),
        "The run would go on from wrong weights, and only its records would know.",
    ),
    Mutant(
        "what was made of rotten bytes is as good as any",
        "supervisor/core/trust.py",
        "    if not made_of_it or (rung.name, rung.mtime_ns) in trust.left:\n",
        "    if made_of_it or (rung.name, rung.mtime_ns) in trust.left:\n",
        (f"{CORE}::test_what_was_made_of_bad_bytes_is_set_aside_with_them",),
        "The next start would be from the newest of them.",
    ),
    Mutant(
        "a file that was touched is trusted",
        "supervisor/adapters/verifier.py",
        "        if told is None or told.identity != rung.identity or",
        "        if told is None or",
        (f"{VERIFIER}::test_what_was_proven_and_not_touched_since_is_trusted",),
        "Another file under the same name would be resumed from unread.",
    ),
    Mutant(
        "what is still being written is sealed",
        "supervisor/adapters/verifier.py",
        "        if is_being_written(rung.where):\n            self._tell",
        "        if False:\n            self._tell",
        (f"{VERIFIER}::test_what_its_writer_has_open_is_neither_told_nor_sealed",),
        "Half a save would have the strongest proof there is.",
    ),
    Mutant(
        "a shell's end is its trainer's",
        "supervisor/core/deaths.py",
        "    if death.shell:\n",
        "    if False:\n",
        ("tests/core/test_machine.py::test_how_a_shell_ends_says_nothing_of_the_trainer_in_it",),
        "What a trainer was writing when SIGTERM killed it below a shell would be sealed as its last save.",
    ),
    Mutant(
        "an old seal proves whatever has its name",
        "lastgood/files.py",
        "    return Judgement(Kind.HEALTHY, Proof.SEAL, STILL_SEALED, found) if seal.accepts(found) else None\n",
        "    return Judgement(Kind.HEALTHY, Proof.SEAL, STILL_SEALED, found)\n",
        ("tests/library/test_bound_seals.py::test_other_bytes_under_a_supervisors_seal_are_a_new_arrival",),
        "The next snapshot in the same file, cut or not, would be proven.",
    ),
    Mutant(
        "a decision is carried out whatever it breaks",
        "supervisor/core/machine.py",
        "    if found := invariants.broken(state, event, after, commands):",
        "    if found := []:",
        (f"{MACHINE}::test_a_decision_that_breaks_one_is_refused",),
        "A bug in the core would start a second trainer instead of ending the supervisor.",
    ),
]
