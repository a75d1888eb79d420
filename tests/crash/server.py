"""A process that has torch and its lazy parts imported, has no threads, and forks a traced child for each row of trials.

It reads requests from standard input and answers each trial as it is over; the tests check one while the next one runs.
"""

import io
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tests.crash import tracer
from tests.crash.tracer import Plan, Prepare, Trial

ROOT = Path(__file__).parents[2]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Server:
    """The tests' side of it. For one user at a time."""

    def __init__(self) -> None:
        self._answering = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.server"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, **ONE_THREAD},
        )  # fmt: skip

    def why_not(self) -> str | None:
        """Why nothing can be traced here, or None."""
        (reason,) = self._ask("why not")
        return reason

    def trials(
        self, operation: Prepare, folders: Sequence[str], plans: Sequence[Plan], template: str = ""
    ) -> Iterator[Trial]:
        """Do the operation in each folder under its plan, in one child; each folder is a copy of `template`, if given."""
        count = 0
        for trial in self._ask((operation, list(zip(folders, plans, strict=True)), template)):
            count += 1
            yield trial
        assert len(plans) == count, "the child died before the last trial"

    def _ask(self, request: object) -> Iterator[Any]:
        assert self._process.stdin is not None
        while self._answering:
            self._receive()  # nobody wanted the rest of the last answers
        pickle.dump(request, self._process.stdin)
        self._process.stdin.flush()
        self._answering = True
        while (answer := self._receive()) is not None:
            if isinstance(answer, Exception):
                raise answer
            yield answer[0]

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        answer = pickle.load(self._process.stdout)
        self._answering = isinstance(answer, tuple)
        return answer

    def close(self) -> None:
        """End it, and with it whatever it traces."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        try:
            for answer in _answers(request):
                pickle.dump((answer,), answers)
                answers.flush()
            pickle.dump(None, answers)
        except Exception as error:  # noqa: BLE001 - told to the tests, which raise it
            pickle.dump(error if _can_be_told(error) else RuntimeError(repr(error)), answers)
        answers.flush()


def _can_be_told(error: Exception) -> bool:
    try:
        return isinstance(pickle.loads(pickle.dumps(error)), Exception)
    except Exception:  # noqa: BLE001 - whatever it is, it cannot
        return False


def _answers(request: Any) -> Iterator[Any]:
    if request == "why not":
        yield tracer.why_not()
        return
    operation, trials, template = request
    if template:
        _lay_out(template, [folder for folder, _ in trials])
    yield from tracer.run_traced(operation, trials)


def _lay_out(template: str, folders: Sequence[str]) -> None:
    """Make copies of a folder. Much quicker than copying times and attributes too, which nobody looks at."""
    found = [(os.path.relpath(base, template), names) for base, _, names in os.walk(template)]
    files = {(base, name): Path(template, base, name).read_bytes() for base, names in found for name in names}
    for folder in folders:
        for base, names in found:
            os.makedirs(os.path.join(folder, base), exist_ok=True)
            for name in names:
                Path(folder, base, name).write_bytes(files[base, name])


def _warm_up() -> None:
    """Do once what imports lazily, so that the trials show the operation and nothing else."""
    import torch

    from lastgood import hashing, judging, ledger
    from tests.crash import operations

    torch.set_num_threads(1)
    judging.RETRY_SECONDS = 0.0  # an injected error does not pass while one waits
    hashing.CHUNK_BYTES, hashing.CHUNKS_MAX = 1024, 4  # small snapshots are then written as large ones are
    assert ledger.STILL_NS > 0
    ledger.STILL_NS = -(1 << 62)  # files just made are remembered too, so that every trial makes the same calls
    with tempfile.TemporaryDirectory() as folder:
        for operation in (
            operations.first_save,
            operations.overwrite,
            operations.set_aside,
            operations.seal_for_others,
        ):
            operations.write_snapshot(folder, 2)
            operation(folder)()


def main() -> None:
    """Serve until standard input ends. What anybody prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.sched_setaffinity(
        0, {max(os.sched_getaffinity(0))}
    )  # tracer and child take turns: on one processor that is quick
    _warm_up()
    requests = sys.stdin.buffer
    assert isinstance(requests, io.BufferedReader)
    _serve(requests, answers)


if __name__ == "__main__":
    main()
