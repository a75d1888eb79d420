"""Rules of the house that a machine can keep."""

import ast
import configparser
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.settings import Settings

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for room in ("lastgood", "supervisor", "trainer") for path in (ROOT / room).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 330
PURE_LIBRARY = {"contract", "verdict", "naming", "choose", "keep"}
PURE_BUILTINS = {"os", "re", "collections", "dataclasses", "enum", "math", "typing", "errno", "random", "signal"}


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it, as dotted names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def rooms(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", SOURCES, ids=rooms)
def test_imports_go_one_way(path: Path) -> None:
    """supervisor and trainer use lastgood and never each other; in the supervisor, adapters do not know each other."""
    here, found = rooms(path), imports_of(path)
    forbidden = {"lastgood": ("supervisor", "trainer"), "supervisor": ("trainer", "torch"), "trainer": ("supervisor",)}
    for name in forbidden[here.split(".")[0]]:
        if (here, name) != ("supervisor.chaos.oracle", "torch"):
            assert not [one for one in found if one.split(".")[0] == name], here
    if here.startswith("supervisor.adapters."):
        others = {one for one in found if one.startswith("supervisor.adapters.")}
        assert not others, here
        core = {one.split(".")[2] for one in found if one.startswith("supervisor.core.")}
        assert core <= {"events", "memory", "budget"}, here
    if here == "supervisor.chaos.oracle":
        assert not [one for one in found if one.split(".")[0] in ("lastgood", "supervisor")]


@pytest.mark.parametrize("path", [p for p in SOURCES if rooms(p).startswith("supervisor.core.")], ids=rooms)
def test_the_core_is_pure(path: Path) -> None:
    """No clock, files, processes, threads or third parties in the core."""
    for name in imports_of(path):
        top, _, rest = name.partition(".")
        if name == "lastgood":
            continue  # its modules are looked at under their own names
        if top == "lastgood":
            assert rest.split(".")[0] in PURE_LIBRARY, name
        elif top == "supervisor":
            assert rest.split(".")[0] in ("core", "errors"), name
        else:
            assert top in PURE_BUILTINS, name
    assert not re.search(r"\b(open|print)\(|time\.|os\.", path.read_text()), path


def test_only_the_functions_that_save_and_load_import_torch() -> None:
    """The library is standard library only; torch is imported inside functions, of the modules that save and load."""
    for path in SOURCES:
        if rooms(path).startswith("lastgood"):
            tops = {name.split(".")[0] for name in imports_of(path)} - {"lastgood"}
            outside = tops - set(sys.stdlib_module_names)
            saving = path.stem in ("checkpoint", "loading", "payload", "rng", "staging")
            assert outside <= ({"torch", "numpy"} if saving else set()), path
            assert not [
                n for n in ast.parse(path.read_text()).body if isinstance(n, ast.Import) and n.names[0].name == "torch"
            ]


def test_structlog_has_one_importer() -> None:
    """Records go through the journal."""
    assert ["supervisor.adapters.journal"] == [rooms(p) for p in SOURCES if "structlog" in imports_of(p)]


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=rooms)
def test_functions_and_files_stay_short(path: Path) -> None:
    """70 lines a function, 330 a source file."""
    for function in functions(path):
        assert (function.end_lineno or 0) - function.lineno < FUNCTION_LINES_MAX, function.name
    if path in SOURCES:
        assert len(path.read_text().splitlines()) <= FILE_LINES_MAX, path


@pytest.mark.parametrize("path", TESTS, ids=rooms)
def test_every_test_states_its_behaviour(path: Path) -> None:
    """A test is a sentence."""
    missing = [f.name for f in functions(path) if f.name.startswith("test_") and not ast.get_docstring(f)]
    assert not missing


def test_functions_of_the_core_are_small() -> None:
    """Half of what decides fits in less than ten lines a function."""
    every = [one for path in (ROOT / "supervisor" / "core").glob("*.py") for one in functions(path)]
    lines = [(one.end_lineno or 0) - one.lineno + 1 for one in every]

    assert 100 < len(lines)
    assert 10 > statistics.median(lines)


def test_public_names_of_the_library_are_documented() -> None:
    """Whoever imports the library reads what a function does and raises."""
    for path in SOURCES:
        if rooms(path).split(".")[0] in ("lastgood", "supervisor"):
            tree = ast.parse(path.read_text())
            assert path.name == "__init__.py" or ast.get_docstring(tree), path
            public = [
                n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")
            ]
            assert not [n.name for n in public if not ast.get_docstring(n)], path


def test_every_setting_is_in_the_reference() -> None:
    """config/reference.yaml is what the settings say, generated, not written."""
    made = subprocess.run(
        [sys.executable, "-m", "supervisor.reference"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert made == (ROOT / "config" / "reference.yaml").read_text()
    assert len(Settings.model_fields) == len(re.findall(r"^\w+:", made, re.MULTILINE))


def test_the_unit_agrees_with_the_exit_statuses() -> None:
    """Permanent statuses are not restarted, a stop is a success, and there is time for the grace and all that follows it."""
    from supervisor import mailbox, patience
    from supervisor.adapters import notifier, watcher
    from supervisor.core.state import Policy
    from supervisor.errors import ExitStatus

    unit = configparser.ConfigParser(interpolation=None)
    unit.read(ROOT / "systemd" / "lastgood@.service")
    service = unit["Service"]
    permanent = {str(int(status)) for status in ExitStatus if 2 <= status <= 7}
    assert permanent == set(service["RestartPreventExitStatus"].split())
    assert str(int(ExitStatus.TERMINATED)) == service["SuccessExitStatus"]
    grace = Settings.model_fields["trainer"].get_default().grace_seconds + Policy.kill_seconds
    notifying = notifier.CLOSE_SECONDS + notifier.KILL_SECONDS
    closing = mailbox.CLOSE_SECONDS + watcher._CLOSE_SECONDS + notifying + patience.CLOSE_SECONDS
    assert int(service["TimeoutStopSec"]) >= grace + closing
    assert ("mixed", "continue", "on-failure") == (service["KillMode"], service["OOMPolicy"], service["Restart"])


def test_each_page_has_one_title() -> None:
    """One title a Markdown page."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        assert 1 == len(re.findall(r"^# ", text, re.MULTILINE)), page
