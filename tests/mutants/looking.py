"""Mutants about looks at a few files of a directory: what must not be missed, and for how long."""

from tests.mutants.laboratory import Mutant

VERIFIER = "tests/adapters/test_verifier.py"
HINTS = "tests/supervisor/test_hints.py"

LOOKING = [
    Mutant(
        "a look at a few is trusted where files have several names",
        "supervisor/candidates.py",
        "if names is None or not self._plain else",
        "if names is None else",
        (f"{VERIFIER}::test_a_look_at_what_was_hinted_at_tells_what_a_look_at_all_would",),
        "A snapshot whose file went would count on under the name of a link to it.",
    ),
    Mutant(
        "what was left open is looked at only when something happens to it",
        "supervisor/adapters/verifier.py",
        "None if whole else still_open.union(hinted, others)",
        "None if whole else set(hinted).union(others)",
        (f"{VERIFIER}::test_a_look_at_what_was_hinted_at_tells_what_a_look_at_all_would",),
        "What had not settled would be judged a minute late, or never before the trainer dies.",
    ),
    Mutant(
        "a rescan reads the names for ever",
        "supervisor/hints.py",
        "Depth.ALL if now >= self._all_at else Depth.LISTED",
        "Depth.LISTED",
        (f"{HINTS}::test_a_rescan_reads_the_names_and_now_and_then_every_file",),
        "Bytes written in place under a lost event would never be judged.",
    ),
    Mutant(
        "a lost event is no reason to look at everything",
        "supervisor/hints.py",
        "        self.deepen(Depth.ALL)\n        self.look_by(",
        "        self.look_by(",
        (f"{HINTS}::test_in_doubt_all_is_looked_at",),
        "What happened before a watch was set again would wait for a minute.",
    ),
    Mutant(
        "a directory that has just changed is taken for unchanged",
        "supervisor/candidates.py",
        "return None if is_young else",
        "return",
        ("tests/supervisor/test_candidates.py::test_an_unchanged_directory_costs_one_stat",),
        "A name that comes in the same tick of the clock would not be seen by any rescan of names.",
    ),
    Mutant(
        "what is written over and stays open is seen when it is closed",
        "supervisor/adapters/verifier.py",
        "self._told, notice).union(newest)\n",
        "self._told, notice)\n",
        ("tests/supervisor/test_directory_side.py::test_a_known_file_that_is_written_over_and_stays_open_is_seen",),
        "A trainer that saves over its file for long would be killed for being silent.",
    ),
    Mutant(
        "what was there before the start holds up a death",
        "supervisor/adapters/verifier.py",
        "and self._clock() > until):\n",
        "and False):\n",
        (f"{VERIFIER}::test_what_was_there_before_the_start_holds_up_nobody",),
        "A trainer that dies beside a hundred large snapshots would be restarted a minute later.",
    ),
    Mutant(
        "a watch that had died is no reason to look at everything",
        "supervisor/directory_side.py",
        "self._doubts = self._watcher.check() or self._doubts",
        "self._watcher.check()",
        ("tests/supervisor/test_directory_side.py::test_a_watch_that_died_is_a_reason_to_look_at_everything",),
        "What happened while nobody watched would be found a minute later.",
    ),
    Mutant(
        "a name that is told anew is taken for a new one",
        "supervisor/adapters/verifier.py",
        "        self._left.add(name)\n",
        "",
        (f"{VERIFIER}::test_a_name_is_new_once",),
        "The ladder would hold it twice, and retention would give up one of the two for the other.",
    ),
    Mutant(
        "what a link leads to is pruned",
        "supervisor/directory_side.py",
        "        if rung.name in self._verifier.candidates.linked:\n",
        "        if False:\n",
        ("tests/supervisor/test_directory_side.py::test_what_a_link_leads_to_by_now_is_not_removed",),
        "A link to the best snapshot would lead to nothing.",
    ),
]
