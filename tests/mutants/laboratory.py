"""Break a copy of the product in one place, run tests against it, and say whether they noticed.

A mutant counts as caught only when a test that is green without it *fails*, and when the module that is broken is shown
to be the one that was imported. A copy that cannot be imported proves nothing about the tests.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import witness

COPIED = ("lastgood", "supervisor", "trainer", "tests", "config", "docs", "pyproject.toml")
SECONDS_MAX = 300  # of one run of pytest
OPTIONS = [
    *("-x", "-q", "-m", "not heavy", "--tb=short", "--hypothesis-seed=0"),
    *("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "witness"),
]
NO_FINDING = {"NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError"}
"""Exceptions of a mutant that is itself nonsense, however a test came upon them."""


@dataclass(frozen=True)
class Mutant:
    """The product with `old` replaced by `new`, once, in `file`. `tests`, as pytest names them, must notice; `why` they must."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str

    @property
    def module(self) -> str:
        """The dotted name of the module that is broken."""
        return ".".join(Path(self.file).with_suffix("").parts).removesuffix(".__init__")

    def applied(self, text: str) -> str:
        """The broken text. Raises LookupError when the place is not there exactly once."""
        if (count := text.count(self.old)) != 1:
            raise LookupError(
                f"mutant {self.name}: its old text is {count} times in {self.file}, not once:\n{self.old}"
            )
        return text.replace(self.old, self.new)


class Finding(StrEnum):
    """What came of a mutant."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    SKIPPED = "skipped"  # a test needs what this machine does not have
    WORTHLESS = "worthless"  # it says nothing about the tests


@dataclass(frozen=True)
class Outcome:
    """A finding, with the test that failed, or what went wrong."""

    finding: Finding
    detail: str


class Laboratory:
    """Copies `root` into `folder` once, and from there for each mutant. Several threads may examine at a time."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._folder = folder
        self._whole = folder / "whole"
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, self._whole / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif (root / name).exists():
                shutil.copy(root / name, self._whole / name)
        shutil.copy(witness.__file__, self._whole / "witness.py")
        self._lock = threading.Lock()
        self._greens: dict[str, tuple[threading.Lock, list[Run]]] = {}

    def examine(self, mutant: Mutant) -> Outcome:
        """Run the mutant's tests, with it and without. Raises LookupError when its old text is no longer in its file."""
        place = self._copy(mutant.name)
        broken = place / mutant.file
        broken.write_text(mutant.applied(broken.read_text(encoding="utf-8")), encoding="utf-8")
        if wrong := self._wrong_without(mutant.tests):
            return Outcome(Finding.SKIPPED if wrong.startswith("skipped") else Finding.WORTHLESS, wrong)
        code, seen, said = _tested(place, mutant.tests)
        shutil.rmtree(place)
        failed = [one for one in seen["reports"] if one["outcome"] == "failed"]
        if strangers := [file for file in seen["files"].values() if not file.startswith(f"{place}/")]:
            return Outcome(Finding.WORTHLESS, f"not the mutant was tested but {strangers[0]}")
        if seen["files"].get(mutant.module) != str(broken):
            return Outcome(Finding.WORTHLESS, f"{mutant.module} was not imported by {mutant.tests}\n{said}")
        if code == pytest.ExitCode.OK and not failed:
            return Outcome(Finding.SURVIVED, f"{mutant.tests} are green with it. It matters: {mutant.why}")
        nonsense = any(one["when"] != "call" or one["kind"] in NO_FINDING for one in failed)
        if code != pytest.ExitCode.TESTS_FAILED or nonsense:
            return Outcome(Finding.WORTHLESS, f"no test failed, something else did:\n{said}")
        return Outcome(Finding.CAUGHT, f"{failed[0]['test']} ({failed[0]['kind']})")

    def _copy(self, name: str) -> Path:
        return shutil.copytree(self._whole, self._folder / f"broken-{name.replace(' ', '-')}")

    def _wrong_without(self, tests: tuple[str, ...]) -> str:
        """Why these tests are not green on the unbroken copy, or nothing; each file of tests is run once, as a whole."""
        for test in tests:
            code, seen, said = self._run_of_file(test.partition("::")[0])
            if code != pytest.ExitCode.OK:
                return f"red without any mutant:\n{said}"
            skipped = [one["test"] for one in seen["reports"] if one["outcome"] == "skipped"]
            if found := [name for name in skipped if name.startswith(test)]:
                return f"skipped: {found[0]}"
        return ""

    def _run_of_file(self, file: str) -> "Run":
        with self._lock:
            lock, known = self._greens.setdefault(file, (threading.Lock(), []))
        with lock:
            if not known:
                known.append(_tested(self._whole, (file,)))
            return known[0]


Run = tuple[int, dict[str, Any], str]
"""Exit status of pytest, what the witness saw, and the end of what was printed."""


def _tested(place: Path, tests: tuple[str, ...]) -> Run:
    """Run these tests in a copy, up to the first that fails."""
    report = place.with_name(f"{place.name}-{threading.get_ident()}.json")
    report.write_text('{"reports": [], "files": {}}', encoding="utf-8")
    hidden = ("COV", "PYTEST", "PYTHON", "HYPOTHESIS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environment |= {"PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1", witness.REPORT: str(report)}
    limits = [f"--basetemp={report.with_suffix('.tmp')}", f"--timeout={SECONDS_MAX - 10}"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, *limits, *tests],
            cwd=place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return -1, {"reports": [], "files": {}}, f"not done after {SECONDS_MAX} s\n{late.stdout!r}"
    return done.returncode, json.loads(report.read_text(encoding="utf-8")), done.stdout[-3000:]
