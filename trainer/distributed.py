"""Several processes that train one model together, as `torchrun` starts them: their places, and what they exchange.

One process is the usual case, and then nothing here waits for anybody. With several, every exchange is a point that all
of them pass in the same order; whatever decides how a run goes on (a signal, a loss, an error) is exchanged first, so that
all decide alike. Torch is imported by those who exchange something: a place is known without it.
"""

import contextlib
import datetime as dt
import gc
import io
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from trainer.settings import NoSnapshotError, Settings, UsageError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Ranks:
    """A process's place among `count`, the first being 0, and among `local_count` on its machine."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1

    def numbers(self, number: float) -> list[float]:
        """What each rank gave, in their order."""
        if self.count == 1:
            return [number]
        import torch

        numbers = [torch.zeros(1, dtype=torch.float64) for _ in range(self.count)]
        torch.distributed.all_gather(numbers, torch.tensor([number], dtype=torch.float64))
        return [float(one) for one in numbers]

    def mean(self, number: float) -> float:
        """The mean over the ranks, the same to the last bit on each."""
        return math.fsum(self.numbers(number)) / self.count if self.count > 1 else number

    def objects(self, value: Result) -> list[Result]:
        """What each rank gave, in their order; anything that can be pickled."""
        if self.count == 1:
            return [value]
        import torch

        values: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(values, value)
        return values

    def together(self, act: Callable[[], Result]) -> Result:
        """Do something on every rank; where it is refused on one, all end with that refusal, which rank 0 tells."""
        if self.count == 1:
            return act()
        result: Any = None
        refusal: UsageError | NoSnapshotError | SystemExit | None = None
        try:
            result = act()
        except (UsageError, NoSnapshotError, SystemExit) as error:
            refusal = error
        first = next((one for one in self.objects(refusal) if one is not None), None)
        if first is None:
            return result
        if isinstance(first, SystemExit) and self.rank > 0:
            raise SystemExit(1)
        raise first

    def first(self, act: Callable[[], Result]) -> Result:
        """Do something on rank 0, and give its result, of tensors and plain values, to every rank; refusals as above."""
        result: Any = self.together(lambda: act() if self.rank == 0 else None)
        if self.count == 1:
            return result
        import torch

        file = io.BytesIO()
        if self.rank == 0:
            torch.save(result, file)
        size = int(self.numbers(file.tell())[0])
        content = torch.empty(size, dtype=torch.uint8)
        if self.rank == 0:
            content = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
        torch.distributed.broadcast(content, 0)
        return result if self.rank == 0 else torch.load(io.BytesIO(content.numpy()), weights_only=True)


def place(environ: Mapping[str, str]) -> Ranks:
    """This process's place as the environment tells it; without RANK and WORLD_SIZE it is alone."""
    if not {"RANK", "WORLD_SIZE"} <= environ.keys() or environ["WORLD_SIZE"] == "1":
        return Ranks()
    try:
        rank, count = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        local_rank, local_count = environ.get("LOCAL_RANK", rank), environ.get("LOCAL_WORLD_SIZE", count)
        ranks = Ranks(rank, count, int(local_rank), int(local_count))
    except ValueError:
        raise UsageError("", "RANK and WORLD_SIZE must be numbers; unset them, or start with torchrun") from None
    if not 0 <= rank < count:
        raise UsageError("", f"RANK {rank} is not one of WORLD_SIZE {count}; unset both, or start with torchrun")
    return ranks


def is_first() -> bool:
    """Whether this process, of one or of several, is the one that speaks; one with an impossible place does."""
    rank, count = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdecimal() and count.isdecimal()):
        return True
    return int(rank) == 0 or int(rank) >= int(count)


def say(line: str) -> None:
    """Print a line where it is to be seen once; whoever watches the output sees it at once.

    Where nobody can any more, for the disk under it is full or the reader is gone, that is no reason to lose a run.
    """
    if not is_first():
        return
    try:
        print(line, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - to the end of the process


@contextlib.contextmanager
def joined(ranks: Ranks, settings: Settings) -> Iterator[None]:
    """The ranks can exchange things; none waits longer than `rank_timeout_seconds` for another."""
    if ranks.count == 1:
        yield
        return
    if settings.gradient_accumulation_steps % ranks.count:
        problem = f"{settings.gradient_accumulation_steps} does not divide among {ranks.count} processes"
        raise UsageError("gradient_accumulation_steps", f"{problem}; make it a multiple")
    from torch import distributed

    timeout = dt.timedelta(seconds=settings.rank_timeout_seconds)
    try:
        distributed.init_process_group("gloo" if settings.device == "cpu" else "cpu:gloo,cuda:nccl", timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise SystemExit(f"trainer: rank {ranks.rank} cannot join the others: {error}; start with torchrun") from None
    try:
        yield
        ranks.numbers(0)  # none leaves while another still works
    except (RuntimeError, SystemExit, UsageError, NoSnapshotError) as error:
        traceback.clear_frames(error.__traceback__)
        if isinstance(error, distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
            problem = f"trainer: rank {ranks.rank} lost another one ({str(error).splitlines()[0][:200]})"
            raise SystemExit(f"{problem}; the next start goes on from the newest snapshot") from None
        raise
    finally:  # the model and its link to the others go first: the other way round, torch may wait for itself for ever
        gc.collect()
        distributed.destroy_process_group()
