"""One life: supervisors come and go over one directory until the run is done. One seed, one life."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from supervisor.adapters import statefile
from supervisor.core.machine import BrokenInvariantError
from supervisor.errors import ExitStatus
from supervisor.runtime import Runtime
from tests.simulator.plan import DIRECTORY, Fault, Plan, drawn
from tests.simulator.promises import BrokenError
from tests.simulator.seams import Journal, installed
from tests.simulator.tally import Pair
from tests.simulator.world import Killed, World

SUPERVISORS_MAX = 60
CALM_SECONDS = 6000.0
"""After the storm the run is done within this time: a stall that is hard to tell and some backoffs may still have to pass."""
CALM_STARTS_MAX = 4
RESTART_SECONDS = 15.0
REOPENED = 0.1  # of the runs that are done
LOCK = 3


@dataclass
class Life:
    """What became of a seed."""

    plan: Plan
    met: Counter[str]
    pairs: set[Pair]
    broken: str | None
    history: list[str]
    seconds: float
    trained_seconds: float
    spawns: int
    supervisors: int
    statuses: list[int]

    def told(self) -> str:
        """The seed, the plan, what happened, and which promise that broke; with the command that repeats it."""
        return "\n".join(
            [
                f"seed {self.plan.seed} broke a promise: {self.broken}",
                f"again: python -m tests.simulator --first {self.plan.seed} --seeds 1",
                "plan:",
                self.plan.told(),
                "history:",
                *self.history,
                f"seed {self.plan.seed}: {self.broken}",
            ]
        )


def live(seed: int, broken_product: AbstractContextManager[None] | None = None) -> Life:
    """Live a seed's life to its end, with the product as it is or broken on purpose."""
    world = World(drawn(seed))
    driver = _Driver(world)
    broken: str | None = None
    with installed(world), broken_product or nullcontext():
        try:
            driver.live()
        except BrokenError as error:
            broken = str(error)
        except BrokenInvariantError as error:
            broken = f"the invariants hold: {error}"
        except Exception as error:  # noqa: BLE001 - whatever the product raises is a finding
            broken = f"no exception: {type(error).__name__}: {error}"
    history = [" ".join(map(str, what)) for what in world.history]
    return Life(
        world.plan,
        world.met,
        world.pairs,
        broken,
        history,
        world.now,
        world.trained_seconds,
        world.promises.spawns,
        world.supervisor,
        driver.statuses,
    )


class _Driver:
    def __init__(self, world: World) -> None:
        self._world = world
        self._allow_fresh = False
        self._calm_at: float | None = None
        self._calm_starts = 0
        self.statuses: list[int] = []

    def live(self) -> None:
        """Start supervisors as a service manager and a person would, until the run is done; then once more.

        Sometimes more of it is wanted once it is done.
        """
        world = self._world
        world.after(self._storm_seconds(), self._calm)
        self._live_until_done()
        if world.config.final_step is not None and world.random.random() < REOPENED:
            world.meet("done-and-reopened")
            world.lengthen(5, None)
            world.raise_final_step()
            self._calm_starts = world.promises.spawns
            self._live_until_done()
        if not world.memory_is_stale:
            self._once_more()

    def _live_until_done(self) -> None:
        world = self._world
        while (status := self._supervise()) != ExitStatus.COMPLETED or self._is_reopened():
            if status not in (None, ExitStatus.COMPLETED, ExitStatus.TERMINATED, ExitStatus.INTERRUPTED):
                world.mend()
                self._allow_fresh = status == ExitStatus.NO_HEALTHY_SNAPSHOT
            self._wait_a_while()
            if world.supervisor >= SUPERVISORS_MAX and world.in_storm:
                self._calm()

    def _is_reopened(self) -> bool:
        """Whether the final step was raised, and the supervisor that ended has not heard of it."""
        world = self._world
        return (world.config.final_step or 0) > (world.known.final_step or 0)

    def _storm_seconds(self) -> float:
        faults = self._world.plan.faults
        return faults[-1].at + 60.0 if faults else 0.0

    def _calm(self) -> None:
        world = self._world
        if world.in_storm:
            world.heal()
            self._calm_at, self._calm_starts = world.now, world.promises.spawns
            world.after(CALM_SECONDS, self._overdue)

    def _overdue(self) -> None:
        raise BrokenError("progress after the storm", f"the run was not done within {CALM_SECONDS:.0f} s")

    def _wait_a_while(self) -> None:
        world = self._world
        until = world.now + 1.0 + RESTART_SECONDS * world.random.random()
        while True:
            try:
                while world.happen(until):
                    pass
                break
            except Killed:
                continue  # the power was cut while no supervisor ran
        world.now = max(world.now, until)

    def _supervise(self) -> int | None:
        """One supervisor's life; its exit status, or None when it was killed."""
        world = self._world
        world.supervisor += 1
        world.dead, world.children, world.drained = False, [], {}
        world.asked_to_stop = False
        world.tell("supervisor", world.supervisor)
        if world.take(Fault.WISH_UNREADABLE):
            world.disk.wish_hidden_until = world.now + 60.0 * world.random.random()
        world.promises.began(self._allow_fresh)
        runtime: Runtime | None = None
        try:
            run = self._run()
            if run is None:
                return None
            settings = world.begin_config()
            policy, journal = settings.policy(self._allow_fresh), Journal(world)
            world.runtime = runtime = Runtime(settings, run, policy, journal, LOCK, world.read_config)
            status = runtime.run()
        except Killed:
            if runtime is not None:
                runtime._mailbox.close()
            return None
        world.tell("ended", status)
        self.statuses.append(status)
        world.promises.ended(status)
        world.dead = True
        self._check_calm()
        return status

    def _run(self) -> statefile.RunFile | None:
        """The run of the directory, begun now if there is none; None when the storage does not let us."""
        world = self._world
        try:
            run = statefile.read_run(DIRECTORY, world.monotonic())
            if run is None:
                run = statefile.RunFile(f"run-{world.plan.seed}")
                statefile.write_run(DIRECTORY, run, world.monotonic())
        except OSError:
            world.dead = True
            return None
        return run

    def _check_calm(self) -> None:
        if self._calm_at is not None:
            starts = self._world.promises.spawns - self._calm_starts
            kept = starts <= CALM_STARTS_MAX
            self._world.promises.keep("progress after the storm", kept, f"{starts} starts in calm weather")

    def _once_more(self) -> None:
        """A run that is done stays done, unless a later step becomes the final one meanwhile."""
        world = self._world
        before, final_step = world.promises.spawns, world.config.final_step
        if (status := self._supervise()) is not None and world.config.final_step == final_step:
            done = (status == ExitStatus.COMPLETED or world.asked_to_stop) and world.promises.spawns == before
            world.promises.keep("what is done stays done", done, f"status {status} at the next start")


def lives(
    first: int, count: int, broken_product: Callable[[], AbstractContextManager[None]] | None = None
) -> Iterator[Life]:
    """The lives of a row of seeds."""
    for seed in range(first, first + count):
        yield live(seed, None if broken_product is None else broken_product())
