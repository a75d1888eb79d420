"""A pytest plugin for the child that tests a mutant: tells which tests failed how, and which modules were really imported.

It is copied next to the mutant and writes one JSON object to the file that the environment names.
"""

import gc
import json
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

REPORT = "LASTGOOD_WITNESS"
OURS = ("lastgood", "supervisor", "trainer", "tests")

_reports: list[dict[str, Any]] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note each phase of each test, with the kind of its exception."""
    report = yield
    kind = type(call.excinfo.value).__name__ if call.excinfo else ""
    _reports.append({"test": report.nodeid, "when": report.when, "outcome": report.outcome, "kind": kind})
    return report


def pytest_sessionfinish() -> None:
    """Write down what was seen. What the broken product left open is let go here, and is no business of pytest's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
    files = {
        name: module.__file__
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in OURS and getattr(module, "__file__", None)
    }
    with open(os.environ[REPORT], "w", encoding="utf-8") as file:
        json.dump({"reports": _reports, "files": files}, file)
