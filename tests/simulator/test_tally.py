"""What the simulator says of many lives: what was met often enough, which pairs, and under which names promises break."""

import ast
from collections import Counter
from pathlib import Path

from tests.simulator.plan import Fault, kinds
from tests.simulator.promises import PROMISES
from tests.simulator.tally import IMPOSSIBLE, LIVES_MIN, NAMED_MAX, possible_pairs, told_pairs, too_rare

HERE = Path(__file__).parent
OF_THE_CORE = "the invariants hold"  # told of where they are checked


def names_used(path: Path) -> set[str]:
    """The promises that a file keeps or says are broken, as they stand there."""
    calls = [one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Call) and one.args]
    named = [one.args[0] for one in calls if ast.unparse(one.func).rpartition(".")[2] in ("keep", "BrokenError")]
    return {str(one.value) for one in named if isinstance(one, ast.Constant)}


def test_of_many_lives_each_kind_is_demanded() -> None:
    """One life of a hundred must have met it; of few lives nothing is demanded."""
    met = Counter(dict.fromkeys(kinds(), LIVES_MIN // 100))
    met["crash"] -= 1
    del met["standby"]

    assert ["crash", "standby"] == too_rare(met, LIVES_MIN)
    assert kinds() == too_rare(met, LIVES_MIN + 100)
    assert [] == too_rare(met, LIVES_MIN - 1)


def test_pairs_that_were_not_met_are_named_where_they_are_few() -> None:
    """In their order; else only their number is told."""
    pairs = list(possible_pairs())

    assert len(Fault) ** 2 - len(IMPOSSIBLE) == len(pairs)
    assert told_pairs(pairs).endswith("0 not met")
    assert told_pairs(pairs[2:]).endswith("2 not met: crash then crash, crash then fault-signal")
    assert told_pairs(pairs[NAMED_MAX + 1 :]).endswith(f"{NAMED_MAX + 1} not met")


def test_every_promise_has_its_name_in_the_set() -> None:
    """One that is used and is not there would break as an error of the simulator's; one that is not used holds nothing."""
    used = {name for path in HERE.glob("*.py") for name in names_used(path)}

    assert PROMISES - {OF_THE_CORE} == used
