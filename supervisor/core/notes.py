"""What several cells say and note alike: progress, ends, and the fields of their records. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lastgood import keep
from lastgood.choose import holds, with_one
from lastgood.verdict import Kind
from supervisor.core import budget
from supervisor.core.blame import Blame, lack
from supervisor.core.causes import evidence
from supervisor.core.commands import Command, Exit, PruneSnapshot, Record, SaveMemory
from supervisor.core.divergence import Divergence, Stretch
from supervisor.core.events import RungFact, TrainerExited
from supervisor.core.state import Phase, Policy, State
from supervisor.errors import ExitStatus

Outcome = tuple[State, tuple[Command, ...]]

USAGE = (
    ExitStatus.USAGE,
    "the trainer refuses its command line or cannot be started",
    "read its last lines, mend `trainer.command`, start again",
)

_TRACEBACK = "Traceback (most recent call last)"


def joined(commands: Iterable[Command], outcome: Outcome) -> Outcome:
    """`outcome` with `commands` carried out first."""
    state, more = outcome
    return state, (*commands, *more)


def reached_step(state: State) -> int:
    """The highest step ever reported or saved; -1 when there was none."""
    known = (state.memory.reached, state.memory.high_water)
    return max((step for step in known if step is not None), default=-1)


def knows(state: State, rung: RungFact) -> bool:
    """Whether a snapshot of that name and time is one of those that are known."""
    return holds(state.rungs, rung)


def note_snapshot(state: State, rung: RungFact, policy: Policy, new_name: bool = False) -> Outcome:
    """Take in a judged snapshot: say what it is, count progress, and give up old ones when it is proven."""
    state, said = see(state, rung, new_name)
    return joined(
        said, _note_proven(state, rung, policy) if rung.verdict is not None and rung.verdict.proven else (state, ())
    )


def see(state: State, rung: RungFact, new_name: bool = False) -> Outcome:
    """Say what a snapshot is, and know of it."""
    assert rung.verdict is not None
    state = replace(state, rungs=with_one(state.rungs, rung, new_name))
    verdict = rung.verdict
    if verdict.proven:
        state = replace(state, memory=replace(state.memory, ever_proven=True))
    fields: dict[str, Any] = {
        "name": rung.name,
        "step": rung.step,
        "verdict": str(verdict.kind),
        "proof": None if verdict.proof is None else str(verdict.proof),
        "reason": verdict.reason,
    }
    if not verdict.usable:
        return state, (Record("snapshot.rejected", fields),)
    return state, (Record("snapshot.verified", {**fields, "seconds": verdict.seconds, "bytes": verdict.bytes}),)


def _note_proven(state: State, rung: RungFact, policy: Policy) -> Outcome:
    """Progress is a step above high water; where nobody tells a step, a proven snapshot that was not there before."""
    state = _with_told(state, policy)
    step = state.life.reported if rung.step is None else rung.step
    memory = state.memory
    known = state.incarnation == 0 or (
        step is not None and step <= (-1 if memory.high_water is None else memory.high_water)
    )
    if known or state.life.losses.is_after_finite(step):
        return prune(state, policy)
    if step is not None:
        memory = replace(memory, high_water=step, reached=max(step, memory.reached or 0))
    memory = replace(memory, budget=budget.refill(memory.budget), open=False)
    state = replace(state, memory=memory, life=replace(state.life, progressed=True))
    said = Record("trainer.progressed", {"step": step, "loss": state.life.loss})
    return joined((SaveMemory(memory), said), prune(state, policy))


def _with_told(state: State, policy: Policy) -> State:
    """The state that remembers what was told at the steps of its snapshots, if retention asks for that."""
    if policy.keep is None or not policy.keep.best:
        return state
    steps = {rung.step for rung in state.rungs}
    losses = {step: loss for step, loss in (*state.memory.losses, *state.life.told) if step in steps}
    return replace(state, memory=replace(state.memory, losses=tuple(losses.items())))


def prune(state: State, policy: Policy) -> Outcome:
    """Give up what retention gives up now. The snapshot that the trainer was resumed from is in use."""
    if policy.keep is None:
        return state, ()
    in_use = {rung.name for rung in state.rungs if rung.linked}
    if state.life.resumed is not None:
        in_use.add(state.life.resumed.name)
    gone = keep.expendable(state.rungs, policy.keep, in_use, dict(state.memory.losses))
    kept = tuple(rung for rung in state.rungs if rung not in gone)
    return replace(state, rungs=kept), tuple(PruneSnapshot(rung) for rung in gone)


def rejected(rungs: Iterable[RungFact]) -> list[dict[str, str]]:
    """Why each of these was passed over, as `fallback.chosen` lists it."""
    return [
        {"name": rung.name, "verdict": str(rung.verdict.kind), "reason": rung.verdict.reason}
        for rung in rungs
        if rung.verdict is not None
    ]


def fallback(
    *,
    by: str,
    newest_step: int | None,
    chosen: str,
    chosen_step: int | None,
    reached: int | None,
    depth: int,
    rejected: list[dict[str, str]],
) -> Record:
    """The record of a fallback; `reached` is the highest step known of, -1 or None when there is none."""
    lost = None if chosen_step is None or reached is None or reached < 0 else max(0, reached - chosen_step)
    fields = {
        "by": by,
        "newest_step": newest_step,
        "chosen_step": chosen_step,
        "chosen": chosen,
        "depth": depth,
        "steps_lost": lost,
        "rejected": rejected,
    }
    return Record("fallback.chosen", fields)


def suspected(found: Blame) -> Record:
    """Several deaths alike make a snapshot a suspect, and an older one is tried."""
    fields = {
        "name": found.snapshot.name,
        "step": found.snapshot.step,
        "deaths": found.deaths,
        "died_at": found.step,
        "signature": found.signature,
    }
    return Record("snapshot.suspected", fields)


def convicted(found: Blame | None) -> Record:
    """A suspect is poisoned: from an older one the run got past where it died."""
    assert found is not None
    assert found.suspect is not None
    reason = f"{found.deaths} deaths alike from it ({found.signature}), and none from an older one"
    fields = {
        "name": found.suspect.name,
        "step": found.suspect.step,
        "verdict": str(Kind.POISONED),
        "proof": None,
        "reason": reason,
    }
    return Record("snapshot.rejected", fields)


def software_at_fault(found: Blame) -> tuple[int, str, str]:
    """Status, reason and advice when a run dies the same way whatever it is resumed from."""
    at = "before its first step" if found.step is None else f"at step {found.step}"
    return (
        ExitStatus.CANNOT_CONTINUE,
        f"software cannot continue: {found.deaths} deaths alike {at}, from more than one snapshot ({found.signature})",
        "read its last lines in `trainer.log` and mend the program, its data or the machine; snapshots are untouched",
    )


def diverged(found: Divergence, skipping: Stretch | None) -> Record:
    """Training has gone wrong, and is stepped back."""
    fields = {
        "step": found.step,
        "finite_step": found.finite,
        "times": found.times,
        "skipping": None if skipping is None else f"{skipping[0]}-{skipping[1]}",
    }
    return Record("trainer.diverged", fields)


def diverges_again(found: Divergence) -> tuple[int, str, str]:
    """Status, reason and advice when stepping back does not help."""
    at = "an unknown step" if found.step is None else f"step {found.step}"
    return (
        ExitStatus.BUDGET_SPENT,
        f"the loss stopped being finite {found.times} times in a row, last at {at}",
        "lower the learning rate, look at the data of those steps, then start again; `divergence.rollbacks` allows more",
    )


def unproven_note(chosen: RungFact) -> tuple[Command, ...]:
    """Resuming from something without any proof is said loudly."""
    if chosen.verdict is None or chosen.verdict.kind is not Kind.UNPROVEN:
        return ()
    return (Record("resume.unproven", {"name": chosen.name, "step": chosen.step, "reason": chosen.verdict.reason}),)


def exited(state: State, death: TrainerExited, cause: str) -> Record:
    """The record of a death; a warning unless it was wished for."""
    fields = {
        "cause": cause,
        "code": death.code,
        "signal": death.signal,
        "said": state.life.said,
        "fault": death.fault,
        "step": state.life.reported,
        "evidence": evidence(death, cause) or (lack(death) if cause == "crashed" else None),
        "last_lines": list(death.last_lines),
    }
    return Record("trainer.exited", fields, "info" if cause in ("completed", "stopped") else "warning")


def doubt(death: TrainerExited, policy: Policy) -> str | None:
    """Why an end may be none: a wrapper, such as a pipeline, can make a 0 of a crash, and nobody said which step is the last."""
    if policy.final_step is not None or not any(_TRACEBACK in line for line in death.last_lines):
        return None
    return "it ended with 0, but its last lines have a traceback; with `run.final_step` an early end is told from a completion"


def done_at(state: State, policy: Policy) -> int:
    """The step at which the run is done, by its snapshots and its settings: a line that was told may be no step."""
    known = [step for step in (state.memory.high_water, policy.final_step) if step is not None]
    return max(known, default=reached_step(state))


def completed(state: State, step: int, doubt: str | None = None) -> Outcome:
    """The run is done at that step, and will still be done after a reboot."""
    memory = replace(state.memory, done=max(step, 0))
    state = replace(state, phase=Phase.COMPLETED, memory=memory)
    fields = {"step": None if step < 0 else step, "doubt": doubt}
    said = Record("run.completed", fields, None if doubt is None else "warning")
    return state, (SaveMemory(memory), said, Exit(ExitStatus.COMPLETED))


def stopped(state: State) -> Outcome:
    """The run was stopped on request; the next start goes on."""
    status = ExitStatus.INTERRUPTED if state.stop_signal == 2 else ExitStatus.TERMINATED
    memory = replace(state.memory, open=False)
    said = Record("run.stopped", {"status": int(status), "step": memory.high_water})
    return replace(state, phase=Phase.STOPPED, memory=memory), (SaveMemory(memory), said, Exit(status))


def paused(state: State) -> Outcome:
    """The run waits for somebody to resume it; what is in the directory is read anew then."""
    said = Record("run.paused", {"step": state.memory.high_water, "reached": state.memory.reached})
    return replace(state, phase=Phase.PAUSED), (SaveMemory(state.memory), said)


def failed(state: State, status: int, reason: str, advice: str) -> Outcome:
    """The run cannot go on without a person."""
    said = Record("run.failed", {"status": int(status), "reason": reason, "advice": advice})
    memory = replace(state.memory, open=False)
    return replace(state, phase=Phase.FAILED, memory=memory), (SaveMemory(memory), said, Exit(int(status)))


def none_healthy(rungs: tuple[RungFact, ...]) -> tuple[int, str, str]:
    """Status, reason and advice when no snapshot may be resumed from."""
    count = len(rungs)
    found = f"none of {count} snapshot{'s' * (count != 1)} is healthy" if count else "its snapshots are gone"
    return (
        ExitStatus.NO_HEALTHY_SNAPSHOT,
        f"{found}, and this run has had some before",
        "look at `lastgood list`; `--allow-fresh-start` starts over and sets the bad ones aside",
    )


def forbidden(rung: RungFact) -> tuple[int, str, str]:
    """Status, reason and advice when permissions hide a newer snapshot."""
    return (
        ExitStatus.NO_HEALTHY_SNAPSHOT,
        f"{rung.name} cannot be read: permission denied",
        "give this user read permission on the checkpoint directory's files, then start again",
    )


def stuck() -> tuple[int, str, str]:
    """Status, reason and advice when something outlives SIGKILL and it was asked not to wait for that."""
    return (
        ExitStatus.STUCK,
        "a process of the run cannot be ended, not even by SIGKILL",
        "what it waits for, storage or a driver, must answer or be taken away; then start again",
    )


def in_the_way(rung: RungFact) -> tuple[int, str, str]:
    """Status, reason and advice when a bad snapshot cannot be taken out of the trainer's sight."""
    return (
        ExitStatus.NO_HEALTHY_SNAPSHOT,
        f"{rung.name} is bad and cannot be set aside, and the trainer would resume from it",
        "read `snapshot.set_aside_failed`, mend the cause or move the file away, then start again",
    )


def budget_spent(cause: str, deaths: int) -> tuple[int, str, str]:
    """Status, reason and advice when restarting does not help."""
    return (
        ExitStatus.BUDGET_SPENT,
        f"the trainer died {deaths} times without progress, last: {cause}",
        "read its last lines in `trainer.log`, mend the cause, start again; snapshots are untouched",
    )
