"""One summary of a run's state, for everything that shows it: status.json, `lastgood status`, and what comes later.

Pure, but that a supervisor knows its own pid.
"""

import math
import os
from typing import Any

from supervisor.core.events import Obstacle
from supervisor.core.state import Phase, Policy, State
from supervisor.settings import Settings, inert

VERSION = 1

_AWAITED = {
    Obstacle.DISK: "room on the disk",
    Obstacle.GPU_LOST: "a GPU that is lost",
    Obstacle.GPU_BUSY: "memory of a GPU that dead processes hold",
}


def introduction(directory: str, watching: str, settings: Settings) -> dict[str, Any]:
    """What a supervisor says of itself first."""
    return {
        "pid": os.getpid(),
        "directory": directory,
        "watching": watching,
        "preset": settings.preset_name,
        "ignored_settings": inert(settings),
    }


def summary(state: State, policy: Policy, context: dict[str, Any]) -> dict[str, Any]:
    """What a person or a program may want to know of a run now. `context` adds what the core does not know."""
    life, memory = state.life, state.memory
    newest = next((r for r in state.rungs if r.verdict is not None and r.verdict.proven), None)
    return {
        "version": VERSION,
        **context,
        "phase": str(phase_shown(state)),
        "waiting_for": _waiting_for(state),
        "incarnation": memory.incarnation,
        "step": life.reported,
        "loss": _number(life.loss),
        "final_step": policy.final_step,
        "high_water": memory.high_water,
        "reached": memory.reached,
        "resumed_from": None if life.resumed is None else life.resumed.name,
        "last_good": None if newest is None else {"name": newest.name, "step": newest.step},
        "deaths_without_progress": len(memory.budget.fruitless),
        "done": memory.done,
        "failure": None if state.failure is None else state.failure[1],
        "snapshots": [
            {
                "name": rung.name,
                "step": rung.step,
                "verdict": None if rung.verdict is None else str(rung.verdict.kind),
            }
            for rung in state.rungs[:20]
        ],
    }


def phase_shown(state: State) -> Phase:
    """The phase as people see it: a look now and then is part of a wait."""
    return Phase.WAITING if state.phase is Phase.SELECTING and state.wait is not None else state.phase


def _number(value: float | None) -> float | str | None:
    """A number as JSON can hold it: there is none for nan and the infinities, which are told in words."""
    return value if value is None or math.isfinite(value) else str(value)


def _waiting_for(state: State) -> str | None:
    """What a run in the phase waiting waits for, in words; None in any other."""
    if phase_shown(state) is not Phase.WAITING:
        return None
    if state.stuck:
        return "processes that will not die"
    if state.away:
        return "the checkpoint directory"
    return "a snapshot that cannot be read or moved" if state.wait is None else _AWAITED[state.wait.obstacle]
