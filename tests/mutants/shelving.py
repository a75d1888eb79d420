"""Mutants of the shelf: what a file that is overwritten in place is protected by."""

from tests.mutants.laboratory import Mutant

SHELF = "tests/adapters/test_shelf.py"
PRESET = "tests/supervisor/test_nanogpt_preset.py"
SWEEP = "tests/crash/test_shelf_sweep.py"
ADAPTER = "supervisor/adapters/shelf.py"
LADDER = "supervisor/shelved.py"
SIDE = "supervisor/shelf_side.py"

SHELVING = [
    Mutant(
        "a copy is a hard link",
        ADAPTER,
        "    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)\n",
        "    os.link(source.name, partial)\n    return 'copy'\n    descriptor = 0\n",
        (f"{SHELF}::test_a_copy_outlives_what_overwrites_its_file",),
        "The next save would truncate the only good copy.",
    ),
    Mutant(
        "a copy is not read back",
        ADAPTER,
        "            if how is None or file_sha256(partial) != verdict.sha256:\n                return None\n",
        "            if how is None:\n                return None\n",
        (
            f"{SHELF}::test_a_copy_that_reads_back_otherwise_does_not_count",
            f"{SHELF}::test_a_file_that_is_overwritten_while_it_is_copied_gets_no_copy[same size and times]",
        ),
        "Half of one save and half of the next would be sealed as good.",
    ),
    Mutant(
        "what is put back is not read back",
        ADAPTER,
        "                if how is None or file_sha256(partial) != digest:\n",
        "                if how is None:\n",
        (f"{SHELF}::test_a_copy_that_changed_since_it_was_judged_is_not_put_back",),
        "The trainer would go on from bytes that nobody has proven.",
    ),
    Mutant(
        "a copy is put over what is there",
        ADAPTER,
        "                if os.path.lexists(self._in_place):\n",
        "                if False:\n",
        (f"{SHELF}::test_nothing_is_put_over_a_file_that_is_there",),
        "Somebody's only snapshot would be gone without a trace.",
    ),
    Mutant(
        "a seal for the new copy alone while the old one is there",
        ADAPTER,
        "    replaced = () if old is None else (old,)\n",
        "    replaced = ()\n",
        (f"{SWEEP}::test_a_copy_killed_anywhere_leaves_old_or_new[same step again]",),
        "A kill between seal and rename would condemn the copy.",
    ),
    Mutant(
        "a copy is renamed before it is sealed",
        ADAPTER,
        "    write_durably(seal_path(target), seal_text(digest, name, replaced).encode(\"utf-8\", \"surrogateescape\"))\n"
        "    fsync_folder(folder)\n    os.rename(partial, target)\n",
        "    os.rename(partial, target)\n"
        "    write_durably(seal_path(target), seal_text(digest, name, replaced).encode(\"utf-8\", \"surrogateescape\"))\n",
        (f"{SWEEP}::test_a_copy_killed_anywhere_leaves_old_or_new",),
        "A kill in between would leave a copy without its seal.",
    ),
    Mutant(
        "copies given up although that makes no room",
        ADAPTER,
        "            if sum(rung.identity.size for rung in spare) >= missing:\n",
        "            if True:\n",
        (f"{SHELF}::test_old_copies_go_where_that_makes_room",),
        "Good snapshots would go for nothing.",
    ),
    Mutant(
        "one copy is enough when the disk is short",
        ADAPTER,
        "            spare = self._expendable(Keep(LEAST_KEPT, self._keep.every, self._keep.best))\n",
        "            spare = self._ours()[1:]\n",
        (f"{SHELF}::test_too_little_space_is_said_before_anything_is_written",),
        "Were that one bad, there would be nothing.",
    ),
    Mutant(
        "free space is not looked at",
        ADAPTER,
        "    if free < size + SPARE_BYTES:\n",
        "    if free < 0:\n",
        (f"{SHELF}::test_too_little_space_is_said_before_anything_is_written",),
        "A copy would take the room of the trainer's own next save.",
    ),
    Mutant(
        "a torn file is the oldest rung",
        LADDER,
        "    if not is_proven or rung.step is None:\n",
        "    if False:\n",
        (f"{SHELF}::test_a_torn_file_comes_first_although_it_cannot_tell_its_step",),
        "It would not be set aside, and the trainer would load it.",
    ),
    Mutant(
        "the clock decides whether a torn file is newer",
        LADDER,
        "        return [rung, *_older(rung, down(shelf))]\n",
        "        return [rung, *down(shelf)]\n",
        (f"{SHELF}::test_a_torn_file_comes_first_although_it_cannot_tell_its_step",),
        "After a clock was set back the trainer would load the torn file.",
    ),
    Mutant(
        "no copy of what was saved unseen",
        SIDE,
        "            if in_place is not None:\n                self.keep_copy(in_place)\n            return told\n",
        "            return told\n",
        (f"{PRESET}::test_an_earlier_save_is_kept_before_a_trainer_may_overwrite_it",),
        "The first save after a restart would overwrite the only one.",
    ),
    Mutant(
        "a blamed snapshot leaves its copy on the shelf",
        "supervisor/directory_side.py",
        "        for copy in [] if self._shelf is None else self._shelf.copies_of(rung):\n",
        "        for copy in ():\n",
        (f"{PRESET}::test_a_snapshot_that_is_blamed_leaves_with_its_copy_and_comes_back_to_the_shelf",),
        "The same bytes would be put in place again, for ever.",
    ),
    Mutant(
        "a fresh start although there is something to resume",
        "supervisor/launch.py",
        "(preset.resume_arguments if snapshot is not None else ())",
        "()",
        (f"{PRESET}::test_a_start_with_something_to_resume_says_so_last",),
        "nanoGPT would start over in silence, and overwrite its file.",
    ),
]  # fmt: skip
