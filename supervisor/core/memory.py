"""What a run must remember across the supervisor's own death. Written to run.json; small on purpose."""

from dataclasses import dataclass

from supervisor.core.blame import Blame
from supervisor.core.budget import Budget
from supervisor.core.divergence import Divergence, Stretch
from supervisor.core.trust import Trust


@dataclass(frozen=True)
class Memory:
    """`high_water`: highest step of a proven snapshot ever. `reached`: highest step ever reported or saved.

    `incarnation` counts trainers ever started; `open` says that the last one has neither progressed nor been told dead. `done` is
    the step at which the run completed.
    `ever_proven` says that a proven snapshot of the run was seen, whether or not it told its step.
    `born_empty` says that the run's first start found no snapshot in its directory. `blame` and `divergence` are the trouble
    that the run has not got past yet; `skip` are steps whose data is not to be used. `trust` is what the present or last trainer
    was started from on trust, until its bytes have been read again. `losses` are those told at steps that there are
    snapshots of.
    """

    high_water: int | None = None
    reached: int | None = None
    incarnation: int = 0
    open: bool = False
    done: int | None = None
    ever_proven: bool = False
    born_empty: bool = False
    blame: Blame | None = None
    divergence: Divergence | None = None
    skip: tuple[Stretch, ...] = ()
    trust: Trust | None = None
    losses: tuple[tuple[int, float], ...] = ()
    budget: Budget = Budget()  # noqa: RUF009 - frozen, so one default serves all
