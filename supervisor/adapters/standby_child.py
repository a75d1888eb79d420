"""Waits, with the slow imports done, to become the next trainer.

Run by path, by the trainer's own interpreter, with the flags of its command line:
`python FLAGS standby_child.py SOCKET MODULES WORD...`. SOCKET is an inherited descriptor, MODULES a list with commas, and the
WORDs are what follows the flags in the trainer's command: a script, `-m` and a module, or `-c` and code, with arguments. It says
`ready` once the imports are done. What it is sent then, a JSON object on one line, is what it becomes: `argv`, the `words`
in it, `env` (the variables called `LASTGOOD_*`; the others are as they were), `cwd`, and `group`, the `cgroup.procs` of a
control group or null. Each byte is one character.

Standard library only: it runs where the trainer runs, whatever is installed there.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import pkgutil
import runpy
import socket
import sys
import types
from importlib.machinery import BuiltinImporter, SourceFileLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_run_module_as_main: Callable[..., object] = runpy._run_module_as_main  # type: ignore[attr-defined]  # as `python -m` does
READY = b"ready\n"
_LINE_BYTES_MAX = 1 << 24


def _is_safe_path() -> bool:
    """Whether Python puts nothing first in `sys.path`."""
    return bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)  # the first since Python 3.11


def path_entry(words: Sequence[str]) -> str:
    """What Python puts first in `sys.path` for such a command line."""
    if words[0] == "-m":
        return os.getcwd()
    return "" if words[0] == "-c" else os.path.dirname(os.path.realpath(words[0]))


def shadows(folder: str) -> bool:
    """Whether modules in a folder are called like some of Python's own, so that an import by others would run them."""
    try:
        names = os.listdir(folder or os.getcwd())
    except OSError:
        return False
    modules = {os.path.splitext(name)[0] for name in names if name.endswith((".py", ".so"))}
    modules |= {name for name in names if os.path.isfile(os.path.join(folder, name, "__init__.py"))}
    return not modules.isdisjoint(getattr(sys, "stdlib_module_names", ()))  # since Python 3.10


def wait(channel: socket.socket, modules: Sequence[str]) -> dict[str, Any]:
    """Import what is installed, say so, and return what is sent; ends the process when nobody is there to send it.

    An import that fails half-way cannot be done again in this process, so that ends it too.
    """
    score = die_first(b"1000")
    given = set(os.environb)
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
    for name in set(os.environb) - given:
        del os.environb[name]  # what an import has set, it would not have before the command's first line
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # the command may set TMPDIR before it asks
    channel.sendall(READY)
    told = b""
    while not told.endswith(b"\n") and len(told) < _LINE_BYTES_MAX:
        part = channel.recv(1 << 16)
        if not part:
            sys.exit(0)
        told += part
    die_first(score)
    found: dict[str, Any] = json.loads(told)
    return found


def die_first(score: bytes) -> bytes:
    """Say how soon the kernel shall end this process when memory runs out; returns what it was before."""
    try:
        with open("/proc/self/oom_score_adj", "rb+", buffering=0) as file:
            before = file.read().strip()
            file.write(score)
    except OSError:
        return score
    return before


def enter(group: str | None) -> None:
    """Go into a control group, as the start of a trainer would; without it the trainer lives all the same."""
    if group is not None:
        try:
            with open(group, "wb") as file:
                file.write(b"0")
        except OSError:
            pass


def take_environment(env: Mapping[str, str]) -> None:
    """Have these variables of the supervisor's, and none of those that it gave before; no other has changed."""
    for name in [name for name in os.environb if name.startswith(b"LASTGOOD_")]:
        del os.environb[name]
    os.environb.update({_bytes(name): _bytes(value) for name, value in env.items()})


def _bytes(told: str) -> bytes:
    """JSON holds no bytes, and what they mean as text is each interpreter's own affair."""
    return told.encode("latin-1")


def become(argv: Sequence[str], words: Sequence[str]) -> None:
    """Run the command as if the interpreter had been started with it; `words` are those that follow the flags."""
    if hasattr(sys, "orig_argv"):  # since Python 3.10
        sys.orig_argv[:] = argv
    sys.argv[:] = [words[0], *words[2:]] if words[0] in ("-m", "-c") else words
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    names = {"__builtins__": builtins, "__annotations__": {}}
    main.__dict__.update(
        {name: value for name, value in names.items() if name in globals()}
    )  # as this interpreter has it
    if words[0] == "-m":
        _run_module_as_main(words[1])
    elif words[0] == "-c":
        main.__loader__ = BuiltinImporter
        exec(compile(words[1], "<string>", "exec", dont_inherit=True), main.__dict__)
    elif pkgutil.get_importer(words[0]) is not None:  # a folder or an archive
        sys.path[: not _is_safe_path()] = [os.path.join(os.getcwd(), words[0])]
        _run_module_as_main("__main__", False)
    else:
        path = os.path.join(os.getcwd(), words[0])
        main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:  # as Python says it
            sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
            sys.exit(2)
        code = compile(content, path, "exec", dont_inherit=True)
        exec(code, main.__dict__)


def main(arguments: Sequence[str]) -> None:
    """Wait and become; what the command raises looks as if nothing had come before it."""
    descriptor, modules, words = int(arguments[0]), arguments[1].split(","), arguments[2:]
    if not _is_safe_path():
        sys.path[0] = path_entry(words)
        modules = [] if shadows(sys.path[0]) else modules
    with socket.socket(fileno=descriptor) as channel:
        told = wait(channel, modules)
    argv, words = ([os.fsdecode(_bytes(word)) for word in told[name]] for name in ("argv", "words"))
    enter(told["group"])
    take_environment(told["env"])
    os.chdir(_bytes(told["cwd"]))  # the folder of that name may be another one by now
    if not _is_safe_path():
        sys.path[0] = path_entry(words)
    try:
        become(argv, words)
    except SystemExit:
        raise
    except BaseException:
        shown = sys.excepthook
        sys.excepthook = lambda kind, error, trace: shown(
            kind, error.with_traceback(_own_part(trace)), _own_part(trace)
        )
        raise


def _own_part(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without the frames of this file, which come first: what the command did."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main(sys.argv[1:])
