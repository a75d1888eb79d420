"""The trainer as a process: started in its own session, asked to stop, its exit collected.

- It dies with the supervisor: the parent-death signal is set by `exec_shim.py`, not in forked Python.
- Its stdout and stderr are one pipe; the read end is `Child.output_descriptor`, and somebody must drain it.
- A signal goes through a pidfd, or to a pid whose start time was checked: never to a stranger.

The kernel ties the parent-death signal to the *thread* that forks, so call `Child.spawn` from a thread that lives as long
as the supervisor. Whatever the trainer leaves behind is the business of `tree.py`.
"""

import ctypes
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from supervisor.proc import Identity, identity_of, is_alive, program_of, reap_orphans, send_signal, snapshot

__all__ = ["Child", "Exit", "Identity", "become_subreaper", "identity_of", "is_alive", "reap_orphans", "stop_targets"]

_PR_SET_CHILD_SUBREAPER = 36
_SHIM = Path(__file__).with_name("exec_shim.py")
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "ksh93", "mksh", "fish"})


def become_subreaper() -> None:
    """Make orphans of our descendants children of this process, so that none can escape by a double fork."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1)) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a child subreaper")
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        # Inherited from a careless parent; with it the kernel throws every exit status away.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@dataclass(frozen=True)
class Exit:
    """How a process ended: an exit code, a signal, or neither when somebody else collected its status."""

    code: int | None
    signal: int | None


class Child:
    """One running trainer, by its pidfd, with the read end of its output."""

    def __init__(self, identity: Identity, pidfd: int, output_descriptor: int) -> None:
        """Take over a process that was started; use `spawn`."""
        self.identity = identity
        self.pidfd = pidfd
        self.output_descriptor = output_descriptor
        self._exit: Exit | None = None
        self.is_shell = False
        """Whether it was a shell when it was last seen alive."""

    @classmethod
    def spawn(
        cls,
        argv: Sequence[str],
        *,
        cwd: str | Path,
        env: Mapping[str, str],
        group: str | None = None,
        keep: tuple[int, ...] = (),
    ) -> Self:
        """Start a command in its own session; a command that cannot be executed exits with 126 or 127.

        `group` is the `cgroup.procs` of the control group in which it starts, if it can; it inherits the descriptors in `keep`.
        Raises OSError when not even that could be tried: no such folder, no descriptors, no memory.
        """
        output, child_end = os.pipe()
        try:
            pid = _fork_and_exec([*([] if group is None else [group]), "--", *argv], cwd, env, child_end, keep)
            return cls(*_grip(pid), output)
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(child_end)

    def poll_exit(self) -> Exit | None:
        """How the process ended, or None while it runs; never waits. The answer is remembered."""
        if self._exit is None and self.pidfd >= 0:
            self._exit = _collect(self.pidfd)
            if self._exit is None:
                self.is_shell = _is_shell(self.identity.pid)
        return self._exit

    def ask_to_stop(self) -> list[Identity]:
        """Ask the trainer to save and end (SIGCONT, then SIGTERM), never its whole group: workers serve the save.

        A shell passes nothing on, so what it runs is asked too. Returns who was asked: a shell ends at once, and its
        exit does not mean that the trainer under it has finished saving.
        """
        if self.poll_exit() is not None:
            return []
        table = snapshot()
        targets = stop_targets({s.pid: s.parent for s in table.values()}, self.identity.pid, _is_shell)
        known = [table[pid].identity for pid in targets if pid in table]
        return [identity for identity in known if self._ask(identity)]

    def close(self) -> None:
        """Close the descriptors; the process itself is left alone."""
        for descriptor in (self.output_descriptor, self.pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self.output_descriptor = self.pidfd = -1

    def _ask(self, identity: Identity) -> bool:
        # A stopped process acts on SIGTERM only after it was continued.
        return send_signal(identity, signal.SIGCONT) and send_signal(identity, signal.SIGTERM)


def stop_targets(parents: Mapping[int, int], leader: int, is_shell: Callable[[int], bool]) -> list[int]:
    """Who is asked to stop, given every process's parent: the leader and, through shells, what the shells run.

    The leader comes first, so that a script does not go on to its next command when this one ends.
    """
    targets = [leader]
    for pid in targets:
        if is_shell(pid):
            targets.extend(child for child, parent in parents.items() if parent == pid and child not in targets)
    return targets


def _is_shell(pid: int) -> bool:
    return program_of(pid) in _SHELLS


def _fork_and_exec(
    argv: Sequence[str], cwd: str | Path, env: Mapping[str, str], output: int, keep: tuple[int, ...]
) -> int:
    """Start the shim that becomes the command; returns the pid, whose exit status is ours to collect."""
    shim = [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid()), *argv]
    try:
        process = subprocess.Popen(
            shim, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, pass_fds=keep
        )  # fmt: skip
    except ValueError as error:
        raise OSError(errno.EINVAL, f"cannot be passed to a program: {error}") from error
    # Popen served to fork. Told that it is over, it will neither wait, nor warn, nor collect the status behind our back.
    process.returncode = 0
    return process.pid


def _grip(pid: int) -> tuple[Identity, int]:
    """Identity and pidfd of a child just started, which cannot be reused before we collect it."""
    try:
        pidfd = os.pidfd_open(pid)
        identity = identity_of(pid)
        if identity is None:
            os.close(pidfd)
            raise OSError(errno.ESRCH, "the process just started is not in /proc")
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    return identity, pidfd


def _collect(pidfd: int) -> Exit | None:
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return Exit(code=None, signal=None)
    if result is None:
        return None
    ended = result.si_code == os.CLD_EXITED
    return Exit(code=result.si_status if ended else None, signal=None if ended else result.si_status)
