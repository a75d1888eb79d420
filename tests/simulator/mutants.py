"""The product broken on purpose, in one place each: the simulator must notice, or it proves nothing."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from lastgood import keep, rungs
from lastgood.verdict import Kind, Proof, Verdict
from supervisor import directory_side, forerunner, memory_side, runtime, trainer_side, wishes
from supervisor.adapters import statefile, verifier
from supervisor.core import budget, causes, deaths, ending, machine, notes, prelude, rereading, selecting, trainer_life
from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.state import Phase, Policy

Mutant = Callable[[], AbstractContextManager[None]]


@contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace `owner.name` by what `make` makes of the real one."""
    real = getattr(owner, name)
    setattr(owner, name, make(real))
    try:
        yield
    finally:
        setattr(owner, name, real)


@contextmanager
def _cell(event: type, phase: Phase, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace one cell of the core's table."""
    row = machine.TABLE[event]
    real = row[phase]
    row[phase] = make(real)
    try:
        yield
    finally:
        row[phase] = real


def _second(real: Any) -> Any:
    def choose(ladder: Any) -> Any:
        rest = [rung for rung in ladder[1:] if rung.verdict is not None]
        return real(rest) or real(ladder)

    return choose


@contextmanager
def _second_newest() -> Iterator[None]:
    def all_of_them(real: Any) -> Any:
        return lambda found, ledger, **_: [rungs.judge(rung, ledger, fresh=True) for rung in found]

    with _replaced(selecting, "choose", _second), _replaced(verifier, "down_to_first_proven", all_of_them):
        yield


def _believing(real: Any) -> Any:
    def verify(path: str, deep: bool = False) -> Verdict:
        found: Verdict = real(path)
        return found if found.kind is Kind.UNREADABLE else found._replace(kind=Kind.HEALTHY, proof=Proof.SEAL)

    return verify


def _progressing(real: Any) -> Any:
    return lambda before, limits, now, progressed: real(before, limits, now, True)


def _not_sweeping(real: Any) -> Any:
    def begin(state: Any) -> Any:
        return deaths.judge_again(state)

    return begin


def _taken_for_empty(real: Any) -> Any:
    def on_unreadable(state: Any, event: Any, now: float, policy: Any) -> Any:
        forgetful = replace(state, memory=replace(state.memory, ever_proven=False))
        return selecting.on_ladder(forgetful, e.LadderJudged((), ever_held=False), now, policy)

    return on_unreadable


def _silent(real: Any) -> Any:
    def resume_from(*arguments: Any) -> Any:
        state, orders = real(*arguments)
        return state, tuple(o for o in orders if not (isinstance(o, c.Record) and o.event == "fallback.chosen"))

    return resume_from


def _all_but_the_newest(real: Any) -> Any:
    return lambda ladder, *_: [rung for rung in ladder[1:] if rung.verdict and rung.verdict.proven]


def _on_a_full_disk(context: Any) -> Any:
    return replace(context, obstacle=e.Obstacle.DISK)


@contextmanager
def _on_wall_clock() -> Iterator[None]:
    def walled(real: Any) -> Any:
        return SimpleNamespace(monotonic=real.time, time=real.time)

    with _replaced(runtime, "time", walled), _replaced(directory_side, "time", walled):
        yield


def _confirming(real: Any) -> Any:
    return lambda state, trust, rung, now, policy: rereading._confirmed(state, rung, now, policy)


def _hearing_steps(real: Any) -> Any:
    def hear(self: Any, on_step: Any) -> None:
        real(self, lambda step, loss, _: self._post(e.StepReported(self._incarnation, step, loss)))

    return hear


def _starting_all_the_same(real: Any) -> Any:
    def ask_to_stop(self: Any) -> None:
        before = self._pre_start
        then = None if before is None else before.then
        real(self)
        if before is not None:
            before.then = then

    return ask_to_stop


def _taken_for_none(real: Any) -> Any:
    def look(self: Any) -> str | None:
        found: str | None = real(self)
        self._waits = False
        return found

    return look


def _freezing(real: Any) -> Any:
    return lambda self, told: real(self, told) if told["incarnation"] < 2 else None


def _deaf_to_the_dead(real: Any) -> Any:
    def begin(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        self._trainer.ended = trainer_side._ignore

    return begin


def _counting_again(real: Any) -> Any:
    def note_proven(state: Any, rung: Any, policy: Any) -> Any:
        known = state.memory.high_water
        if known is not None and rung.step == known:
            state = replace(state, memory=replace(state.memory, high_water=known - 1))
        return real(state, rung, policy)

    return note_proven


def _forgiving(real: Any) -> Any:
    def spawn(state: Any, snapshot: Any) -> Any:
        memory = replace(state.memory, budget=replace(state.memory.budget, fruitless=(), recent=()))
        return real(replace(state, memory=memory), snapshot)

    return spawn


MUTANTS: dict[str, Mutant] = {
    "do not count OOM kills": partial(_replaced, causes, "_was_killed", lambda _: lambda event: False),
    "blame the OOM killer for any SIGKILL": partial(
        _replaced, deaths, "exit_cause", lambda real: lambda event, context: real(replace(event, oom_kills=1), context)
    ),
    "choose the second newest": _second_newest,
    "skip verification": partial(_replaced, rungs, "verify", _believing),
    "count a restart as progress": partial(_replaced, budget, "spend", _progressing),
    "fill the budget for a snapshot that is repeated": partial(_replaced, notes, "_note_proven", _counting_again),
    "fill the budget at each start": partial(_replaced, selecting, "_spawn", _forgiving),
    "tell the GPU's side of no death": partial(_replaced, runtime.Runtime, "__init__", _deaf_to_the_dead),
    "forget the sweep at the start": partial(_replaced, machine, "begin", _not_sweeping),
    "take an unreadable directory for an empty one": partial(
        _cell, e.LadderUnreadable, Phase.SELECTING, _taken_for_empty
    ),
    "fall back without a record": partial(_replaced, selecting, "_resume_from", _silent),
    "keep only the newest": partial(_replaced, keep, "expendable", _all_but_the_newest),
    "forget that a supervisor died with its trainer": partial(
        _replaced, forerunner, "counts", lambda _: lambda *_, announced: False
    ),
    "lay an injected fault to the run": partial(
        _replaced, forerunner, "counts", lambda real: lambda *what, announced: real(*what, announced=False)
    ),
    "give up at the first death": partial(_replaced, budget, "_is_spent", lambda _: lambda *_: True),
    "take any exit with 0 for the end": partial(_replaced, deaths, "_finished", lambda _: lambda *_: True),
    "skip the resume check": partial(_replaced, trainer_life, "_is_below_resumed", lambda _: lambda *_: False),
    "take a save for silence": partial(_cell, e.SavingChanged, Phase.RUNNING, lambda _: lambda state, *_: (state, ())),
    "do not hear a heartbeat": partial(_cell, e.HeartbeatSeen, Phase.RUNNING, lambda _: lambda state, *_: (state, ())),
    "do not heed a stop": partial(_cell, e.StopRequested, Phase.RUNNING, lambda _: ending.on_stop_again),
    "do not heed a pause": partial(_replaced, wishes.Wishes, "read", lambda _: lambda self: None),
    "take what runs before for the trainer": partial(_replaced, trainer_side.TrainerSide, "_hear", _hearing_steps),
    "start what was called off": partial(_replaced, trainer_side.TrainerSide, "ask_to_stop", _starting_all_the_same),
    "count what is brought before the trainer": partial(
        _replaced, prelude, "bring", lambda _: partial(notes.note_snapshot, policy=Policy())
    ),
    "do not heed a changed config": partial(_replaced, runtime.Runtime, "_take", lambda _: lambda *_: None),
    "end who goes beyond the old final step": partial(
        _cell, e.SettingsChanged, Phase.RUNNING, lambda _: lambda state, *_: (state, ())
    ),
    "look as seldom as before a change": partial(
        _replaced, directory_side.DirectorySide, "change", lambda _: lambda *_: None
    ),
    "forget a pause at a stop": partial(_replaced, statefile, "settle_wanted", lambda _: statefile.write_wanted),
    "take an unreadable wish for none": partial(_replaced, wishes.Wishes, "_told", _taken_for_none),
    "freeze the status file": partial(_replaced, memory_side.MemorySide, "show", _freezing),
    "trust the wall clock": _on_wall_clock,
    "start whatever stands in the way": partial(_replaced, selecting, "_start_or_wait", lambda _: selecting._go_on),
    "lay a crash to the disk by its words": partial(
        _replaced, deaths, "exit_cause", lambda real: lambda death, context: real(death, _on_a_full_disk(context))
    ),
    "never read again what was trusted": partial(
        _replaced,
        deaths,
        "reread",
        lambda _: lambda state: (replace(state, memory=replace(state.memory, trust=None)), ()),
    ),
    "confirm whatever was trusted": partial(_replaced, rereading, "_refuted", _confirming),
    "never write run.json": partial(_replaced, statefile, "write_run", lambda _: lambda *_: None),
}
