"""Sends records to the targets of `notify:`, never in the way of the supervisor.

Each target has a bounded queue, a thread, and a process of its own that runs its commands (see `notify_agent.py`), so that
a target that does not answer delays no other. What fails is told as `notification.failed`, which is itself never sent.
Make a `Notifier` before the trainer's side: what exists by then does not belong to the run.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor.errors import UsageError
from supervisor.launch import NOT_PASSED_ON
from supervisor.notify import NEVER_SENT, NOT_UNDERSTOOD, SENDER, Target, failure, job

QUEUE_MAX = 256  # records that wait for one target; the oldest is dropped for a newer one
CHECK_SECONDS = 10.0  # for Apprise to say whether it knows a URL, once at the start
CLOSE_SECONDS = 5.0  # for the last records, which are the most important ones
KILL_SECONDS = 1.0  # for a process that was told to end
ENDED_FIRST = "the supervisor ended first"

_ROOT = str(Path(__file__).parents[2])
_AGENT = "import sys; sys.path.insert(0, sys.argv[1]); from supervisor.notify_agent import main; main()"

Record = Mapping[str, Any]
Report = Callable[[str, str, int, str], None]


def check(targets: Sequence[Target], where: str) -> None:
    """Refuse targets that nothing can be sent to. Raises UsageError, in one line."""
    for index, target in enumerate(targets):
        if target.url is not None and importlib.util.find_spec("apprise") is None:
            raise UsageError(
                f"{where}: {target.shown(index)} is sent through Apprise, which is not installed; "
                "`pip install 'lastgood[notify]'`"
            )
        if target.url is not None and not _is_understood(target.url):
            raise UsageError(
                f"{where}: {target.shown(index)} is no URL that Apprise understands; see its list of services"
            )
        if target.url is None and shutil.which(target.command[0]) is None:
            raise UsageError(
                f"{where}: {target.shown(index)} is not a program that can be run; check its spelling, PATH and mode"
            )


def _is_understood(url: str) -> bool:
    """Whether Apprise knows the form of a URL; if it cannot be asked now, it is not held against the URL."""
    trial = json.dumps({"url": url})
    try:
        done = subprocess.run(SENDER, input=trial, text=True, capture_output=True, timeout=CHECK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.returncode != NOT_UNDERSTOOD


class Notifier:
    """All targets of a run. `hand` has an act done in the loop's thread, where `say` writes a record."""

    def __init__(
        self,
        targets: Sequence[Target],
        hand: Callable[[Callable[[], None]], None],
        say: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._hand = hand
        self._say = say
        self._failures: deque[dict[str, Any]] = deque()
        self._couriers = [_Courier(target, target.shown(i), self._report) for i, target in enumerate(targets)]
        self._retired: list[_Courier] = []

    def take(self, record: Record) -> None:
        """Send a record to whoever wants it; returns at once."""
        for courier in self._couriers:
            courier.take(record)

    def pids(self) -> tuple[int, ...]:
        """The processes that send; from any thread."""
        agents = [courier.agent for courier in (*self._couriers, *self._retired)]
        return tuple(agent.pid for agent in agents if agent is not None)

    def change(self, targets: Sequence[Target]) -> None:
        """Send to these from now on. What waits for others still gets there, within the time that is given at the end."""
        before = {courier.name: courier for courier in self._couriers}
        named = [(target.shown(index), target) for index, target in enumerate(targets)]
        kept = {name: before[name] for name, target in named if name in before and before[name].target == target}
        for name, courier in before.items():
            if name not in kept:
                self._retire(courier)
        self._couriers = [kept.get(name) or _Courier(target, name, self._report) for name, target in named]

    def _retire(self, courier: "_Courier") -> None:
        def end() -> None:
            courier.wait(CLOSE_SECONDS)
            courier.close()
            self._retired.remove(courier)

        self._retired.append(courier)
        courier.finish()
        threading.Thread(target=end, name="lastgood-notify", daemon=True).start()

    def close(self) -> None:
        """Send what waits, unless that takes too long; leave no process, and tell what did not get through."""
        deadline = time.monotonic() + CLOSE_SECONDS
        for courier in self._couriers:
            courier.finish()
        for courier in self._couriers:
            courier.wait(deadline - time.monotonic())
        for courier in self._couriers:
            courier.close()
        self._tell()

    def _report(self, target: str, record: str, undelivered: int, reason: str) -> None:
        self._failures.append({"target": target, "record": record, "undelivered": undelivered, "reason": reason})
        self._hand(self._tell)

    def _tell(self) -> None:
        while self._failures:
            self._say(NEVER_SENT, self._failures.popleft())


class _Courier:
    """One target with its queue, thread and process."""

    def __init__(self, target: Target, name: str, report: Report) -> None:
        self.target = target
        self.name = name
        self._report = report
        self._queue: deque[Record] = deque()
        self._changed = threading.Condition()
        self._dropped = 0
        self._finishing = self._closed = False
        self.agent = _started()
        self._thread = threading.Thread(target=self._work, name="lastgood-notify", daemon=True)
        self._thread.start()

    def take(self, record: Record) -> None:
        """Queue a record if the target wants it."""
        if not self.target.wants(record["event"], record["level"]):
            return
        with self._changed:
            if len(self._queue) >= QUEUE_MAX:
                self._queue.popleft()
                self._dropped += 1
            self._queue.append(record)
            self._changed.notify()

    def finish(self) -> None:
        """Nothing more will come."""
        with self._changed:
            self._finishing = True
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        """Wait until everything is sent, for so long at most."""
        self._thread.join(max(0.0, seconds))

    def close(self) -> None:
        """End the process, and with it what it runs; tell what is left in the queue."""
        with self._changed:
            self._closed = True
        if self.agent is not None:
            _ended(self.agent)
        self._thread.join(KILL_SECONDS)
        if self.agent is not None and not self._thread.is_alive():
            _close_pipes(self.agent)
        if self._queue:
            self._report(self.name, self._queue[-1]["event"], len(self._queue), ENDED_FIRST)

    def _work(self) -> None:
        while (record := self._next()) is not None:
            reason = self._sent(record)
            if reason is not None:
                self._report(self.name, record["event"], 1, reason)
            with self._changed:
                dropped, self._dropped = self._dropped, 0
            if dropped:
                self._report(
                    self.name,
                    record["event"],
                    dropped,
                    "dropped, the oldest first: records came faster than it takes them",
                )

    def _next(self) -> Record | None:
        with self._changed:
            while not self._queue and not self._finishing:
                self._changed.wait()
            return self._queue.popleft() if self._queue and not self._closed else None

    def _sent(self, record: Record) -> str | None:
        """Have a record sent; returns why that failed. A process that has ended meanwhile is started again."""
        with self._changed:
            if self._closed:
                return ENDED_FIRST
            if self.agent is None or self.agent.poll() is not None:
                if self.agent is not None:
                    _close_pipes(self.agent)
                self.agent = _started()
        if self.agent is None:
            return "no process to send it could be started"
        line = json.dumps(job(self.target, record)).encode() + b"\n"
        answer = _answer(self.agent, line)
        if answer:
            return failure(self.target, json.loads(answer))
        return ENDED_FIRST if self._closed else "the process that sends it was killed"


def _started() -> "subprocess.Popen[bytes] | None":
    """A process that runs commands; None when the system has none to give."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)}
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _AGENT, _ROOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError:
        return None


def _answer(agent: "subprocess.Popen[bytes]", line: bytes) -> bytes:
    """What the process says to a line; nothing when it died before."""
    assert agent.stdin is not None
    assert agent.stdout is not None
    try:
        agent.stdin.write(line)
        agent.stdin.flush()
        answer = agent.stdout.readline()
    except OSError:
        return b""
    return answer if answer.endswith(b"\n") else b""


def _ended(agent: "subprocess.Popen[bytes]") -> None:
    """Have the process end what it runs and itself, by force if need be."""
    agent.terminate()
    try:
        agent.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()


def _close_pipes(agent: "subprocess.Popen[bytes]") -> None:
    for pipe in (agent.stdin, agent.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except OSError:
            pass  # what was still to be written goes nowhere
