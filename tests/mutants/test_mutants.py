"""Every mutant of the table is caught; and the laboratory that says so can tell a caught one from any other.

The whole table: python -m pytest -m heavy tests/mutants
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mutants.laboratory import SECONDS_MAX, Finding, Laboratory, Mutant, Outcome
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).parents[2]
AT_A_TIME = 2

Waiting = Mapping[str, "Future[Outcome]"]


@pytest.fixture(scope="session")
def examined(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    """The outcome of every mutant that is asked about in this session, two being examined at a time."""
    laboratory = Laboratory(ROOT, tmp_path_factory.mktemp("mutants"))
    asked = [
        item.callspec.params["mutant"]
        for item in request.session.items
        if "examined" in getattr(item, "fixturenames", ())
    ]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {mutant.name: pool.submit(laboratory.examine, mutant) for mutant in asked}
        pool.shutdown(cancel_futures=True)


@pytest.mark.heavy
@pytest.mark.timeout(3 * SECONDS_MAX)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_suite_notices(mutant: Mutant, examined: Waiting) -> None:
    """The product broken on purpose turns the tests red that stand for what was broken."""
    outcome = examined[mutant.name].result()
    if outcome.finding is Finding.SKIPPED and not os.environ.get("CI"):
        pytest.skip(outcome.detail)

    assert Finding.CAUGHT is outcome.finding, outcome.detail


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_table_does_not_rot(mutant: Mutant) -> None:
    """What a mutant replaces is in its file, once; its tests are there; and no two have the same name."""
    broken = mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
    compile(broken, mutant.file, "exec")

    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text(encoding="utf-8"), test
    assert 1 == [other.name for other in MUTANTS].count(mutant.name)


TOY = {
    "pyproject.toml": "[tool.pytest.ini_options]\ntimeout = 60\nmarkers = ['heavy: slow']\n",
    "lastgood/__init__.py": "",
    "lastgood/adding.py": "def add(a: int, b: int) -> int:\n    return a + b\n",
    "tests/test_adding.py": "from lastgood.adding import add\n\n\ndef test_sum():\n    assert 4 == add(2, 2)\n",
    "tests/test_nothing.py": "def test_nothing():\n    assert True\n",
    "tests/test_red.py": "from lastgood.adding import add\n\n\ndef test_sum():\n    assert 5 == add(2, 2)\n",
    "tests/test_absent.py": "import pytest\n\n\ndef test_root():\n    pytest.skip('no root')\n",
}
"""A product with one function, and tests of every kind."""


@pytest.fixture
def toy(tmp_path: Path) -> Laboratory:
    """A laboratory for the product with one function."""
    for name, text in TOY.items():
        (tmp_path / "toy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "toy" / name).write_text(text)
    return Laboratory(tmp_path / "toy", tmp_path)


def toy_mutant(new: str, test: str = "tests/test_adding.py", old: str = "a + b") -> Mutant:
    return Mutant("toy", "lastgood/adding.py", old, new, (test,), "two and two are four")


def test_a_mutant_that_a_test_notices_is_caught_and_the_test_named(toy: Laboratory) -> None:
    """The failing test is told with the kind of its failure."""
    assert Outcome(Finding.CAUGHT, "tests/test_adding.py::test_sum (AssertionError)") == toy.examine(
        toy_mutant("a - b")
    )


def test_a_mutant_that_no_test_notices_has_survived_and_it_is_said_why_it_matters(toy: Laboratory) -> None:
    """2 * 2 is 4 as well: the test is green, and says too little."""
    outcome = toy.examine(toy_mutant("a * b"))

    assert (Finding.SURVIVED, True) == (outcome.finding, "two and two are four" in outcome.detail)


@pytest.mark.parametrize(
    ("mutant", "reason"),
    [
        (toy_mutant("a + c"), "no test failed"),
        (toy_mutant("a +"), "was not imported"),
        (toy_mutant("a - b", "tests/test_nothing.py"), "lastgood.adding was not imported"),
        (toy_mutant("a - b", "tests/test_red.py"), "red without any mutant"),
        (toy_mutant("a - b", "tests/test_missing.py"), "red without any mutant"),
    ],
    ids=["no such name", "no Python", "not imported", "red before", "no such test"],
)
def test_a_mutant_that_proves_nothing_is_not_taken_for_a_caught_one(
    toy: Laboratory, mutant: Mutant, reason: str
) -> None:
    """Nonsense, a module that was not imported, and tests that are red anyway say nothing about the tests."""
    outcome = toy.examine(mutant)

    assert (Finding.WORTHLESS, True) == (outcome.finding, reason in outcome.detail), outcome


def test_a_mutant_whose_tests_are_skipped_here_is_neither_caught_nor_alive(toy: Laboratory) -> None:
    """A test that needs what this machine lacks is named."""
    outcome = toy.examine(toy_mutant("a - b", "tests/test_absent.py"))

    assert (Finding.SKIPPED, True) == (outcome.finding, "test_root" in outcome.detail)


def test_a_module_from_elsewhere_is_not_taken_for_the_mutant(toy: Laboratory, tmp_path: Path) -> None:
    """When a test imports the product from another folder, such as an installed one, its failure counts for nothing."""
    (tmp_path / "elsewhere" / "lastgood").mkdir(parents=True)
    (tmp_path / "elsewhere" / "lastgood" / "__init__.py").touch()
    (tmp_path / "elsewhere" / "lastgood" / "adding.py").write_text("def add(a, b):\n    return 0\n")
    lines = [
        "import sys",
        f"sys.path.insert(0, {str(tmp_path / 'elsewhere')!r})",
        "from lastgood.adding import add",
        "def test_sum():",
        "    assert add(2, 2) in (0, 4)",
    ]
    (tmp_path / "whole" / "tests" / "test_foreign.py").write_text("\n".join(lines))
    outcome = toy.examine(toy_mutant("a - b", "tests/test_foreign.py"))

    assert (Finding.WORTHLESS, True) == (outcome.finding, "elsewhere" in outcome.detail), outcome


def test_a_mutant_whose_place_is_gone_is_an_error(toy: Laboratory) -> None:
    """The table must follow the product."""
    with pytest.raises(LookupError, match=r"0 times in lastgood/adding\.py"):
        toy.examine(toy_mutant("a - b", old="a / b"))


def test_the_products_own_tests_notice_a_mutant_of_it(tmp_path: Path) -> None:
    """One of the table, for every day."""
    mutant = next(one for one in MUTANTS if one.name == "order by text")

    assert Finding.CAUGHT is Laboratory(ROOT, tmp_path).examine(mutant).finding
