"""Mutants that a storm of kills on the real system notices."""

from tests.mutants.laboratory import Mutant

SMALL = ("tests/storm/test_storm.py::test_a_small_storm_breaks_no_promise",)

STORMING = [
    Mutant(
        "only the leader is ended",
        "supervisor/adapters/tree.py",
        "    return [stats[pid].identity for pid in sorted(kin) if stats[pid].is_alive]\n",
        "    return [leader] if leader is not None and leader.pid in kin and stats[leader.pid].is_alive else []\n",
        SMALL,
        "What a dead trainer had forked would live beside the next one, for ever.",
    ),
    Mutant(
        "two supervisors may share a directory",
        "supervisor/adapters/statefile.py",
        "            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)\n",
        SMALL,
        "Two would end and start each other's trainers.",
    ),
    Mutant(
        "the second newest is chosen",
        "lastgood/choose.py",
        "    return sorted(candidates, key=_age, reverse=True)\n",
        "    found = sorted(candidates, key=_age, reverse=True)\n    return [*found[1:2], *found[:1], *found[2:]]\n",
        SMALL,
        "Steps that were saved and proven would be made again.",
    ),
]
