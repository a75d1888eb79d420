"""What runs before a trainer (`trainer.pre_start`): until the trainer is there, nothing that happens is its doing. Pure."""

from dataclasses import replace

from supervisor.core import notes
from supervisor.core.commands import Command
from supervisor.core.events import RungFact
from supervisor.core.state import Phase, State

Outcome = tuple[State, tuple[Command, ...]]


def is_on(state: State) -> bool:
    """Whether what runs before it runs, or has failed."""
    return state.life.pid is None and (state.phase in (Phase.STARTING, Phase.STOPPING) or state.death is not None)


def bring(state: State, rung: RungFact) -> Outcome:
    """What runs before the trainer has brought a snapshot: that is no work of the trainer's, and no sign that it lives."""
    if (trust := state.memory.trust) is not None:
        left = replace(trust, left=(*trust.left, (rung.name, rung.mtime_ns)))
        state = replace(state, memory=replace(state.memory, trust=left))
    return notes.see(state, rung)
