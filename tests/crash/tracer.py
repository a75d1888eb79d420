"""Stops a forked child at every system call that touches one folder, and there kills it, fails the call or looks on.

The child asks to be traced and installs a seccomp filter, so that only the calls in `_CALLS` stop it; two markers, calls
of access() on paths that do not exist, bound the window in which they count. Threads are followed. Nothing is assumed to
have happened: a kill counts when the child's exit status says so, a failed call when its result was read back.

Not covered: mmap, io_uring and other ways to change a file without one of these calls; processors other than x86-64.
"""

import ctypes
import errno
import fcntl
import os
import pickle
import platform
import signal
import stat
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

WINDOW_OPENS = "/\x01the window opens"
WINDOW_CLOSES = "/\x01the window closes"
TRIAL_SECONDS_MAX = 20
STRING_BYTES_MAX = 4096
INTERRUPTIONS_MAX = 40  # Python repeats an interrupted call; one that is interrupted for ever is no fault that exists

CHANGING = frozenset(
    {
        "create",
        "write",
        "fsync",
        "rename",
        "unlink",
        "mkdir",
        "rmdir",
        "truncate",
        "link",
        "symlink",
        "chmod",
        "allocate",
    }
)
"""Calls after which a folder may be another one."""
ACTING = CHANGING | {"open", "close", "lock"}
"""Those, and what can fail around them."""
EVERY = ACTING | {"read", "list", "stat"}
"""Those, and what only looks."""


@dataclass(frozen=True)
class _Kind:
    """How a system call is read: its name here, which arguments are paths (with their folder's descriptor) or descriptors."""

    name: str
    paths: tuple[tuple[int | None, int], ...] = ()
    descriptor: int | None = 0


def _on_path(name: str, *paths: tuple[int | None, int]) -> _Kind:
    return _Kind(name, paths, None)


_CALLS = {
    0: _Kind("read"), 17: _Kind("read"), 19: _Kind("read"), 295: _Kind("read"), 217: _Kind("list"),
    1: _Kind("write"), 18: _Kind("write"), 20: _Kind("write"), 296: _Kind("write"), 40: _Kind("write"),
    326: _Kind("write", (), 2),
    2: _on_path("open", (None, 0)), 85: _on_path("create", (None, 0)), 257: _on_path("open", (0, 1)),
    437: _on_path("open", (0, 1)), 3: _Kind("close"),
    4: _on_path("stat", (None, 0)), 5: _Kind("stat"), 6: _on_path("stat", (None, 0)), 262: _on_path("stat", (0, 1)),
    332: _on_path("stat", (0, 1)), 89: _on_path("stat", (None, 0)), 267: _on_path("stat", (0, 1)),
    21: _on_path("stat", (None, 0)), 269: _on_path("stat", (0, 1)), 439: _on_path("stat", (0, 1)),
    73: _Kind("lock"), 74: _Kind("fsync"), 75: _Kind("fsync"), 277: _Kind("fsync"), 306: _Kind("fsync"),
    76: _on_path("truncate", (None, 0)), 77: _Kind("truncate"), 285: _Kind("allocate"),
    82: _on_path("rename", (None, 0), (None, 1)), 264: _on_path("rename", (0, 1), (2, 3)),
    316: _on_path("rename", (0, 1), (2, 3)),
    83: _on_path("mkdir", (None, 0)), 258: _on_path("mkdir", (0, 1)), 84: _on_path("rmdir", (None, 0)),
    87: _on_path("unlink", (None, 0)), 263: _on_path("unlink", (0, 1)),
    86: _on_path("link", (None, 0), (None, 1)), 265: _on_path("link", (0, 1), (2, 3)),
    88: _on_path("symlink", (None, 1)), 266: _on_path("symlink", (1, 2)),
    90: _on_path("chmod", (None, 0)), 91: _Kind("chmod"), 268: _on_path("chmod", (0, 1)),
}  # fmt: skip
"""System calls of x86-64 by number."""
_OPEN_FLAGS = {2: 1, 257: 2}  # which argument holds them
_MORE_NAMES = {"open": {"open", "create"}, "unlink": {"unlink", "rmdir"}}  # what a kind may be called once it is read
_MARKERS = (21, 269, 439)
_WRITE, _WRITEV = 1, 20


@dataclass(frozen=True)
class Call:
    """One call in the window: paths are relative to the folder; `data` and `result` only when recorded."""

    name: str
    path: str
    target: str = ""
    data: bytes = b""
    result: int | None = None
    is_folder: bool = False


@dataclass(frozen=True)
class Plan:
    """What to do, and at which call of the `kinds`: 0 is the first, their number is the end of the window.

    `kill`; `fail` with `errno`, and all later ones too if `sticky`; `garble` what a write is given; `cut` the power of the
    filesystem at `mount`; `copy` the file `image` before every call into `copies`; with nothing, only count.
    `record` keeps what is written. `quick` answers fsync without doing it, for trials after which the kernel lives on.
    `bystander`: another program's `fsync`, or `syncfs`, on the same filesystem comes just before the cut or copy.
    """

    action: str = "count"
    at: int = 0
    errno: int = 0
    sticky: bool = False
    kinds: frozenset[str] = CHANGING
    record: bool = False
    quick: bool = True
    mount: str = ""
    image: str = ""
    copies: str = ""
    bystander: str = ""


@dataclass(frozen=True)
class Outcome:
    """How the operation ended in the child: the names of the exception's classes, its errno and its text."""

    error: tuple[str, ...] = ()
    errno: int | None = None
    text: str = ""


@dataclass(frozen=True)
class Trial:
    """What happened: the calls met, the numbers of those acted upon, the wait status, and the outcome if it came to one."""

    calls: list[Call]
    fired: list[int]
    status: int
    outcome: Outcome | None

    @property
    def killed(self) -> bool:
        """Whether the child died of SIGKILL."""
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL


# --- the system's interface ---------------------------------------------------------------------------------------------

Registers = ctypes.Array[ctypes.c_uint64]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]

_TRACEME, _CONT, _SYSCALL, _SETOPTIONS, _GETREGSET, _SETREGSET = 0, 7, 24, 0x4200, 0x4204, 0x4205
_OPTION_SYSGOOD, _OPTION_FORKS, _OPTION_SECCOMP, _OPTION_EXITKILL = 0x01, 0x02 | 0x04 | 0x08, 0x80, 0x100000
_EVENT_SECCOMP = 7
_SET_PDEATHSIG, _SET_SECCOMP, _SET_NO_NEW_PRIVS, _MODE_FILTER = 1, 22, 38, 2
_NT_PRSTATUS = 1
_WALL = 0x40000000
_AT_FDCWD = -100
_REGISTERS = 27  # of 64 bits, as user_regs_struct has them
_RAX, _ORIG_RAX = 10, 15
_ARGUMENTS = (14, 13, 12, 7, 9, 8)  # rdi, rsi, rdx, r10, r8, r9
_AUDIT_ARCH_X86_64 = 0xC000003E
_SECCOMP_RET_ALLOW, _SECCOMP_RET_TRACE = 0x7FFF0000, 0x7FF00000
SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), understood by ext4 and XFS
SHUTDOWN_WITHOUT_LOG_FLUSH = 2
FICLONE = 0x40049409


def why_not() -> str | None:
    """Why nothing can be traced on this machine, or None when it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return (
            f"the tracer knows the registers of Linux on x86-64, and this is {platform.system()} {platform.machine()}"
        )
    try:
        trial = next(run_traced(lambda folder: lambda: None, [("/", Plan())]), None)
    except OSError as error:
        return f"processes cannot be traced here: {error}"
    return None if trial is not None and trial.outcome == Outcome() else f"processes cannot be traced here: {trial}"


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _ptrace(request: int, tid: int, address: int = 0, data: Any = None) -> None:
    if _libc.ptrace(request, tid, address, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace request {request:#x} for {tid}: {os.strerror(number)}")


def _registers(tid: int) -> Registers:
    registers = (ctypes.c_uint64 * _REGISTERS)()
    vector = _Vector(ctypes.addressof(registers), ctypes.sizeof(registers))
    _ptrace(_GETREGSET, tid, _NT_PRSTATUS, ctypes.addressof(vector))
    return registers


def _answer(tid: int, registers: Registers, result: int) -> None:
    """Let the call not happen and its caller get `result`."""
    registers[_ORIG_RAX] = (1 << 64) - 1
    _set(tid, registers, result)


def _result(tid: int, result: int) -> None:
    """Change what a call that is over gives."""
    _set(tid, _registers(tid), result)


def _set(tid: int, registers: Registers, result: int) -> None:
    registers[_RAX] = result & ((1 << 64) - 1)
    vector = _Vector(ctypes.addressof(registers), ctypes.sizeof(registers))
    _ptrace(_SETREGSET, tid, _NT_PRSTATUS, ctypes.addressof(vector))


def _signed(value: int, bits: int = 64) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _trace_the_calls(kinds: frozenset[str]) -> None:
    """Ask the kernel to stop this process, and all its threads to come, at calls of these kinds and at no others."""

    def instruction(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, k)

    load, jump_if_equal, give = 0x20, 0x15, 0x06
    numbers = sorted(
        number
        for number, kind in _CALLS.items()
        if number in _MARKERS or kinds & _MORE_NAMES.get(kind.name, {kind.name})
    )
    program = instruction(load, 4)  # the architecture
    program += instruction(jump_if_equal, _AUDIT_ARCH_X86_64, 1, 0) + instruction(give, _SECCOMP_RET_ALLOW)
    program += instruction(load, 0)  # the call's number
    for index, number in enumerate(numbers):
        program += instruction(jump_if_equal, number, len(numbers) - index, 0)
    program += instruction(give, _SECCOMP_RET_ALLOW) + instruction(give, _SECCOMP_RET_TRACE)
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    if _libc.prctl(_SET_NO_NEW_PRIVS, 1, None, 0, 0) or _libc.prctl(_SET_SECCOMP, _MODE_FILTER, head, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")


# --- the child ----------------------------------------------------------------------------------------------------------

Prepare = Callable[[str], Callable[[], object]]
"""Given a folder, makes ready and returns what is to be done in it."""


def run_traced(prepare: Prepare, trials: Sequence[tuple[str, Plan]]) -> Iterator[Trial]:
    """Fork a child that does the operation in one folder after the other, each under its plan.

    A plan that ends the child must be the last one. For a process without other children: it waits for all there are.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            _be_the_child(prepare, trials, writer)
        finally:
            os._exit(99)
    os.close(writer)
    tracer = _Tracer(pid, reader, deque((os.path.realpath(folder), plan) for folder, plan in trials))
    try:
        with _limited(tracer):
            yield from tracer.follow()
    finally:
        os.close(reader)


def _be_the_child(prepare: Prepare, trials: Sequence[tuple[str, Plan]], writer: int) -> None:
    _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, None, 0, 0)
    _ptrace(_TRACEME, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    filtered = False
    for folder, _ in trials:
        outcome = Outcome()
        try:
            work = prepare(folder)
            if not filtered:
                _trace_the_calls(frozenset().union(*(plan.kinds for _, plan in trials)))
                filtered = True
            os.access(WINDOW_OPENS, os.F_OK)
            work()
        except BaseException as error:  # noqa: BLE001 - all of it is told to the parent
            names = tuple(kind.__name__ for kind in type(error).__mro__)
            outcome = Outcome(names, getattr(error, "errno", None), f"{type(error).__name__}: {error}")
        said = pickle.dumps(outcome)
        os.write(writer, struct.pack("I", len(said)) + said)
        os.access(WINDOW_CLOSES, os.F_OK)
    os._exit(0)


@contextmanager
def _limited(tracer: "_Tracer") -> Iterator[None]:
    """No trial takes for ever: a child that hangs is killed, which its trial then shows. None outlives the trials."""

    def end(_number: int, _frame: object) -> None:
        if not tracer.reaped:
            os.kill(tracer.pid, signal.SIGKILL)

    before = signal.signal(signal.SIGALRM, end)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        end(0, None)
        with suppress(ChildProcessError):
            while not tracer.reaped:
                os.waitpid(-1, _WALL)


# --- the tracer ---------------------------------------------------------------------------------------------------------


@dataclass
class _Tracer:
    """Follows one child to its end. `_left` are the trials to come, `folder` and `plan` those of the one under way."""

    pid: int
    reader: int
    _left: deque[tuple[str, Plan]]
    folder: str = ""
    plan: Plan = field(default_factory=Plan)
    calls: list[Call] = field(default_factory=list)
    fired: list[int] = field(default_factory=list)
    reaped: bool = False
    _open: bool = False
    _outcome: Outcome | None = None
    _done: Trial | None = None
    _known: set[int] = field(default_factory=set)
    _leaving: dict[int, Callable[[int], None]] = field(default_factory=dict)
    _memory: int = -1

    def follow(self) -> Iterator[Trial]:
        """Let the child run from its first stop to its end; yields each trial as it is over."""
        self._next()
        self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        status = 0
        try:
            while True:
                try:
                    tid, what = os.waitpid(-1, _WALL)
                except ChildProcessError:
                    break
                if os.WIFSTOPPED(what):
                    with suppress(ProcessLookupError):  # it was killed while it stood still
                        self._go_on(tid, what)
                elif tid == self.pid:
                    status, self.reaped = what, True
                if self._done is not None:
                    done, self._done = self._done, None
                    yield done
        finally:
            os.close(self._memory)
        if self.folder:
            yield Trial(self.calls, self.fired, status, self._outcome)

    def _next(self) -> None:
        self.folder, self.plan = self._left.popleft() if self._left else ("", Plan())
        self.calls, self.fired, self._open, self._outcome = [], [], False, None
        signal.setitimer(signal.ITIMER_REAL, TRIAL_SECONDS_MAX)

    def _go_on(self, tid: int, status: int) -> None:
        number, event = os.WSTOPSIG(status), status >> 16
        if tid not in self._known:
            self._known.add(tid)
            if tid == self.pid:
                options = _OPTION_SYSGOOD | _OPTION_FORKS | _OPTION_SECCOMP | _OPTION_EXITKILL
                _ptrace(_SETOPTIONS, tid, 0, options)
            _ptrace(_CONT, tid)  # the stop with which every traced task begins
        elif event == _EVENT_SECCOMP:
            self._entered(tid)
        elif number == signal.SIGTRAP | 0x80:
            self._leaving.pop(tid)(_signed(_registers(tid)[_RAX]))
            _ptrace(_CONT, tid)
        else:
            _ptrace(_CONT, tid, 0, 0 if event else number)

    def _entered(self, tid: int) -> None:
        registers = _registers(tid)
        call = self._call(tid, registers)
        if call is not None and call.path == WINDOW_OPENS:
            self._open = True
            _ptrace(_CONT, tid)
        elif call is not None and call.path == WINDOW_CLOSES:
            self._at_the_end(tid)
        elif call is None or not self._open or call.name not in self.plan.kinds:
            _ptrace(_CONT, tid)
        else:
            self.calls.append(call)
            self._act(tid, registers, len(self.calls) - 1)

    def _act(self, tid: int, registers: Registers, index: int) -> None:
        plan = self.plan
        due = index == plan.at or (plan.sticky and index > plan.at)
        if plan.action == "copy":
            self._copy(index)
        elif due and plan.action in ("kill", "cut"):
            self._end_it(index)
            return
        elif due and plan.action == "fail" and (plan.errno != errno.EINTR or len(self.fired) < INTERRUPTIONS_MAX):
            self._fail(tid, registers, index)
            return
        elif due and plan.action == "garble":
            self._garble(tid, registers, index)
            return
        self._let_go(tid, registers, index)

    def _let_go(self, tid: int, registers: Registers, index: int) -> None:
        if self.plan.quick and self.calls[index].name == "fsync":
            _answer(tid, registers, 0)
            _ptrace(_CONT, tid)
        elif self.plan.record:
            self._then(tid, lambda result: self._note(index, result))
        else:
            _ptrace(_CONT, tid)

    def _note(self, index: int, result: int) -> None:
        self.calls[index] = replace(self.calls[index], result=result)

    def _then(self, tid: int, what: Callable[[int], None]) -> None:
        """Run the call and be there with its result."""
        self._leaving[tid] = what
        _ptrace(_SYSCALL, tid)

    def _fail(self, tid: int, registers: Registers, index: int) -> None:
        """Let the call not happen and fail; a close that fails has closed all the same."""
        is_close = self.calls[index].name == "close"
        if not is_close:
            _answer(tid, registers, -self.plan.errno)

        def left(result: int) -> None:
            if is_close:
                _result(tid, -self.plan.errno)
                result = _signed(_registers(tid)[_RAX])
            if result == -self.plan.errno:
                self.fired.append(index)

        self._then(tid, left)

    def _garble(self, tid: int, registers: Registers, index: int) -> None:
        """Flip a bit in the middle of what is written, for as long as the call takes: memory is sound, storage is not."""
        address, length = registers[_ARGUMENTS[1]], registers[_ARGUMENTS[2]]
        where = address + length // 2
        (good,) = os.pread(self._memory, 1, where)
        os.pwrite(self._memory, bytes([good ^ 1]), where)

        def left(result: int) -> None:
            os.pwrite(self._memory, bytes([good]), where)
            if result > length // 2:
                self.fired.append(index)

        self._then(tid, left)

    def _at_the_end(self, tid: int) -> None:
        """The operation is over, and its caller has been told how."""
        if self.plan.action == "copy":
            self._copy(len(self.calls))
        self._outcome = self._said()
        if self.plan.action in ("kill", "cut") and self.plan.at == len(self.calls):
            self._end_it(len(self.calls))
            return
        self._done = Trial(self.calls, self.fired, 0, self._outcome)
        self._next()
        _ptrace(_CONT, tid)

    def _said(self) -> Outcome:
        (length,) = struct.unpack("I", os.read(self.reader, 4))
        outcome = pickle.loads(os.read(self.reader, length))
        assert isinstance(outcome, Outcome)
        return outcome

    def _end_it(self, index: int) -> None:
        if self.plan.action == "cut":
            _sync_another(self.plan.mount, self.plan.bystander)
            cut_power(self.plan.mount)
        os.kill(self.pid, signal.SIGKILL)
        self.fired.append(index)

    def _copy(self, index: int) -> None:
        _sync_another(self.plan.mount, self.plan.bystander)
        clone(self.plan.image, os.path.join(self.plan.copies, f"{index:04d}.img"))
        self.fired.append(index)

    # --- reading the child's arguments ---

    def _call(self, tid: int, registers: Registers) -> Call | None:
        """The call that a task is about to make; None when it is not about the folder."""
        number = registers[_ORIG_RAX]
        kind = _CALLS[number]
        arguments = [registers[place] for place in _ARGUMENTS]
        if kind.descriptor is not None:
            paths = [self._of_descriptor(tid, arguments[kind.descriptor])]
        else:
            paths = [self._of_path(tid, None if at is None else arguments[at], arguments[it]) for at, it in kind.paths]
        if paths[0] in (WINDOW_OPENS, WINDOW_CLOSES):
            return Call("stat", paths[0])
        if not any(path == self.folder or path.startswith(self.folder.rstrip("/") + "/") for path in paths):
            return None
        name = _name_of(kind.name, number, arguments)
        data = self._data(number, arguments) if self.plan.record and name == "write" else b""
        is_folder = name in ("fsync", "open") and os.path.isdir(paths[0])
        relative = [os.path.relpath(path, self.folder) for path in paths]
        return Call(name, relative[0], relative[1] if len(relative) > 1 else "", data, is_folder=is_folder)

    def _data(self, number: int, arguments: list[int]) -> bytes:
        if number == _WRITEV:
            vectors = os.pread(self._memory, 16 * arguments[2], arguments[1])
            return b"".join(os.pread(self._memory, n, at) for at, n in struct.iter_unpack("QQ", vectors))
        if number != _WRITE:
            raise NotImplementedError(f"a write by system call {number} cannot be recorded")
        return os.pread(self._memory, arguments[2], arguments[1])

    def _of_descriptor(self, tid: int, descriptor: int) -> str:
        try:
            return os.readlink(f"/proc/{tid}/fd/{_signed(descriptor, 32)}").removesuffix(" (deleted)")
        except OSError:
            return ""

    def _of_path(self, tid: int, folder: int | None, address: int) -> str:
        text = self._string(address)
        if text.startswith("/"):
            return text
        at = _AT_FDCWD if folder is None else _signed(folder, 32)
        base = os.readlink(f"/proc/{tid}/cwd") if at == _AT_FDCWD else self._of_descriptor(tid, at)
        return os.path.join(base, text) if text else base

    def _string(self, address: int) -> str:
        if address == 0:
            return ""
        found = b""
        while b"\0" not in found and len(found) < STRING_BYTES_MAX:
            start = address + len(found)
            found += os.pread(self._memory, min(256, 4096 - start % 4096), start)
        return os.fsdecode(found.partition(b"\0")[0])


def _name_of(name: str, number: int, arguments: list[int]) -> str:
    if name == "open" and number in _OPEN_FLAGS and arguments[_OPEN_FLAGS[number]] & (os.O_CREAT | os.O_TRUNC):
        return "create"
    if number == 263 and arguments[2] & 0x200:  # AT_REMOVEDIR
        return "rmdir"
    return name


# --- filesystems --------------------------------------------------------------------------------------------------------


def cut_power(mount: str) -> None:
    """Shut a mounted ext4 or XFS down as a power cut does: nothing that was not synced gets to its log any more."""
    root = os.open(mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(root, SHUTDOWN, struct.pack("I", SHUTDOWN_WITHOUT_LOG_FLUSH))
    finally:
        os.close(root)


def _sync_another(mount: str, how: str) -> None:
    """What any other program may do at any moment: sync a file of its own, by which a journal may keep our half-done work."""
    if not how:
        return
    descriptor = os.open(os.path.join(mount, "bystander"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b"x")
        os.fsync(descriptor) if how == "fsync" else _libc.syncfs(descriptor)
    finally:
        os.close(descriptor)


def clone(source: str, target: str) -> None:
    """An instant copy that shares blocks, on a filesystem that can."""
    with open(source, "rb") as given, open(target, "wb") as made:
        if not stat.S_ISREG(os.fstat(given.fileno()).st_mode):
            raise ValueError(f"{source} is not a file")
        fcntl.ioctl(made.fileno(), FICLONE, given.fileno())
