"""A run that restarts ten thousand times: what the supervisor remembers of it does not grow."""

import dataclasses
import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastgood
import supervisor
from supervisor.core.events import TrainerSpawned
from supervisor.runtime import Runtime
from tests.simulator import life, promises
from tests.simulator.plan import Fault, Plan, Planned, Style, drawn

FIRST, LAST = 1_000, 10_000  # restarts, after which memory is looked at
APART_SECONDS = 12.0
GROWTH_BYTES_MAX = 100_000  # eleven bytes a restart
OURS = [tracemalloc.Filter(True, f"{Path(one.__file__).parent}/*") for one in (supervisor, lastgood)]


class EnoughError(Exception):
    """As many restarts as were to be seen."""


def long_life() -> Plan:
    """A trainer that trains and saves for as long as it is let, and is killed every twelve seconds."""
    plan = next(plan for plan in map(drawn, range(1000)) if plan.style is Style.SEALED and plan.resume == "env")
    config = dataclasses.replace(plan.config, final_step=None, keep=2, every=0)
    faults = tuple(Planned(60.0 + APART_SECONDS * number, Fault.CHAOS, 0.5) for number in range(LAST + 100))
    return dataclasses.replace(
        plan, config=config, last_step=10**9, shell=False, pre_start=False, adopted=0, faults=faults
    )


def held() -> int:
    """Bytes that the product's own lines hold."""
    gc.collect()
    statistics = tracemalloc.take_snapshot().filter_traces(OURS).statistics("filename")
    return sum(one.size for one in statistics)


@pytest.fixture
def traced() -> Iterator[None]:
    """Who asked for which memory is known."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("traced")
def test_memory_is_flat_over_ten_thousand_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real core and runtime over a simulated trainer: nothing is kept for each death, start or snapshot."""
    sizes: dict[int, int] = {}
    starts = 0
    step = Runtime._step

    def counted(self: Runtime, event: Any) -> None:
        nonlocal starts
        step(self, event)
        if isinstance(event, TrainerSpawned):
            starts += 1
            if starts in (FIRST, LAST):
                sizes[starts] = held()
            if starts == LAST:
                raise EnoughError

    plan = long_life()
    monkeypatch.setattr(life, "drawn", lambda _seed: plan)
    monkeypatch.setattr(promises, "TURNS_MAX", 100 * LAST)  # it is a long life
    monkeypatch.setattr(Runtime, "_step", counted)
    found = life.live(0)

    assert ("no exception: EnoughError: ", LAST) == (found.broken, starts), found.history[-20:]
    assert sizes[LAST] - sizes[FIRST] < GROWTH_BYTES_MAX, sizes
