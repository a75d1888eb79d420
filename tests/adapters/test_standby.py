"""A process that was started in advance becomes a command, and whoever is run so cannot tell the difference."""

import json
import os
import re
import shutil
import signal
import sys
import zipfile
from pathlib import Path

import pytest

import supervisor.adapters.standby_child  # noqa: F401 - run by path, loaded so that it is known whose it is
from supervisor.adapters import standby
from supervisor.adapters.process import Child
from supervisor.adapters.standby import Standby, split
from supervisor.proc import memory_of
from tests.bench import until

SAYS = """
import argparse, json, multiprocessing, os, pickle, signal, sys, threading
from pathlib import Path

class Thing:
    pass

def work(queue):
    queue.put((__name__, type(pickle.loads(pickle.dumps(Thing()))).__module__, sys.flags.optimize))

def children():
    for method in ("fork", "spawn") if globals().get("__file__", "").endswith(("says.py", "link.py")) else ("fork",):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=work, args=(queue,))
        child.start()
        child.join()
        yield queue.get()

if __name__ == "__main__":
    print(json.dumps({
        "argv": sys.argv, "orig": sys.orig_argv, "prog": argparse.ArgumentParser().prog,
        "path": sys.path, "cwd": os.getcwd(), "stdin": os.readlink("/proc/self/fd/0"),
        "flags": list(sys.flags), "warn": sys.warnoptions, "options": sorted(sys._xoptions),
        "here": vars(sys.modules["__main__"]) is globals(), "file": globals().get("__file__"), "doc": __doc__,
        "names": sorted(name for name in globals() if name.startswith("__")),
        "spec": __spec__ and __spec__.name, "package": __package__, "loader": type(__loader__).__name__,
        "environment": dict(sorted(os.environ.items())),
        "pickled": pickle.loads(pickle.dumps(Thing)) is Thing, "threads": threading.active_count(),
        "ignored": [int(one) for one in signal.valid_signals() if signal.getsignal(one) == signal.SIG_IGN],
        "out of memory": Path("/proc/self/oom_score_adj").read_text(),
        "children": list(children()),
    }), flush=True)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is imported in advance takes no time here."""
    monkeypatch.setattr(standby, "MODULES", ("json", "no_such_module"))


@pytest.fixture
def at(tmp_path: Path) -> Path:
    """A folder with a script, a module, a package, a folder and an archive that can be run."""
    (tmp_path / "says.py").write_text(f'"""Tells."""{SAYS}')
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text(SAYS)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "__main__.py").write_text(SAYS)
    (tmp_path / "link.py").symlink_to(tmp_path / "below" / "__main__.py")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", SAYS)
    return tmp_path


ENV = {**os.environ, "LASTGOOD_MARK": "one", "PYTHONWARNINGS": "default"}


def cold(argv: list[str], at: Path, env: dict[str, str]) -> tuple[int, str]:
    """Exit status and output of a command as any trainer is started."""
    return outcome(Child.spawn(argv, cwd=at, env=env))


def started(argv: list[str], at: Path, env: dict[str, str]) -> tuple[Standby[Child], list[str]]:
    """A process that waits to become a command, and the words that it is to be sent."""
    taken = split(argv)
    assert taken is not None
    before = {**env, "LASTGOOD_MARK": "another", "LASTGOOD_MORE": "gone"}
    made = Standby(lambda argv, keep: Child.spawn(argv, cwd=str(at), env=before, keep=keep), *taken)
    until(made.is_ready)
    return made, taken[1]


def outcome(child: Child) -> tuple[int, str]:
    """Exit status and all output."""
    told = b""
    while part := os.read(child.output_descriptor, 1 << 16):
        told += part
    ended = until(child.poll_exit)
    child.close()
    return (-ended.signal if ended.code is None else ended.code), told.decode()


def warm(argv: list[str], at: Path, env: dict[str, str]) -> tuple[int, str]:
    """The same, by a process that was started in advance."""
    made, words = started(argv, at, env)
    return outcome(made.become(argv, words, env=env, cwd=str(at), group=None))


@pytest.mark.parametrize(
    "words",
    [
        ["says.py"],
        ["says.py", "--flag", "-m", "x"],
        ["./says.py"],
        ["link.py"],
        ["-u", "-O", "says.py"],
        ["-uOO", "-W", "ignore", "-Wdefault", "-X", "dev", "-Xutf8", "says.py"],
        ["-I", "says.py"],
        ["-P", "says.py"],
        ["-sE", "says.py", "a"],
        ["--check-hash-based-pycs", "never", "says.py"],
        ["-m", "package", "a"],
        ["-um", "package", "--a"],
        ["-m", "says"],
        ["-c", SAYS, "a", "-b"],
        ["below"],
        ["archive.zip", "a"],
    ],
    ids=lambda words: " ".join(word if len(word) < 50 else "CODE" for word in words),
)
def test_the_command_tells_the_same_as_when_it_is_started_cold(words: list[str], at: Path) -> None:
    """Arguments, path, flags, environment, names, pickling, children by fork and spawn: nothing of it differs."""
    argv = [sys.executable, *words]
    status, told = cold(argv, at, ENV)

    assert 0 == status, told
    status, by_another = warm(argv, at, ENV)
    assert 0 == status, by_another
    assert json.loads(told) == json.loads(by_another)


INTERRUPTED = """
import atexit, os, signal, time
atexit.register(print, "bye")
os.kill(os.getpid(), signal.SIGINT)
time.sleep(9)
"""
LOCALES = {
    "none": {},
    "C without UTF-8": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "as it is": {"LC_ALL": "C.UTF-8"},
}


@pytest.mark.parametrize("locale", LOCALES)
def test_what_is_no_ascii_is_the_same_in_any_locale(locale: str, at: Path) -> None:
    """Arguments and variables are bytes; what Python adds to its own environment, or a `sitecustomize` to it, is not lost."""
    (at / "site").mkdir()
    (at / "site" / "sitecustomize.py").write_text("import os; os.environ.setdefault('HF_HOME', '/somewhere')")
    env = {name: value for name, value in ENV.items() if not name.startswith(("LC_", "LANG"))}
    env |= {"PYTHONPATH": str(at / "site"), "LASTGOOD_NAME": "größe", "OTHER": "größe", **LOCALES[locale]}
    argv = [sys.executable, "says.py", "größe"]
    status, told = cold(argv, at, env)

    assert (0, "/somewhere") == (status, json.loads(told)["environment"]["HF_HOME"])
    assert (0, json.loads(told)) == ((found := warm(argv, at, env))[0], json.loads(found[1]))


def test_what_was_replaced_while_it_waited_is_run_as_it_is_now(at: Path) -> None:
    """A folder that was taken away and made anew, or a link to one that leads elsewhere by now."""
    for release in ("first", "second"):
        (at / release).mkdir()
        (at / release / "part.py").write_text(f"NAME = {release!r}")
        (at / release / "train.py").write_text("import os, part; print(part.NAME, os.getcwd())")
    (at / "current").symlink_to("first")
    argv = [sys.executable, "current/train.py"]
    made, words = started(argv, at, ENV)
    (at / "current").unlink()
    (at / "current").symlink_to("second")
    assert (0, f"second {at}\n") == outcome(made.become(argv, words, env=ENV, cwd=str(at), group=None))

    argv = [sys.executable, "train.py"]
    made, words = started(argv, at / "first", ENV)
    shutil.rmtree(at / "first")
    shutil.copytree(at / "second", at / "first")
    assert (0, f"second {at}/first\n") == outcome(made.become(argv, words, env=ENV, cwd=str(at / "first"), group=None))


@pytest.mark.parametrize(("error", "ready"), [("ModuleNotFoundError(name='torch')", True), ("OSError(24, 'x')", False)])
def test_an_import_that_fails_half_way_is_none(
    error: str, ready: bool, at: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not installed is passed over; what broke on its way in cannot be imported again, so nothing is ready."""
    (at / "torch.py").write_text(f"raise {error}")
    monkeypatch.setattr(standby, "MODULES", ("json", "torch"))
    made = Standby(lambda argv, keep: Child.spawn(argv, cwd=str(at), env=ENV, keep=keep), [sys.executable], ["says.py"])
    until(lambda: made.is_ready() or not made.is_alive())

    assert (ready, ready) == (made.is_ready(), made.is_alive())
    assert ("it said nothing" if ready else "OSError: [Errno 24] x") == made.last_words()
    made.kill()
    made.close(5)


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('no')", 1),
        ("def f():\n    raise ValueError('no')\nf()", 1),
        ("import no_such_module_either", 1),
        ("a = = 1", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
        (INTERRUPTED, -2),
        ("import atexit, threading; atexit.register(print, 'bye'); threading.Timer(0.1, print, ['late']).start()", 0),
    ],
)
@pytest.mark.parametrize("how", ["script", "module", "code"])
def test_it_ends_the_same_too(code: str, ended: int, how: str, at: Path) -> None:
    """Status and last words, a traceback included, which holds nothing of what came before."""
    (at / "ends.py").write_text(code)
    argv = [sys.executable, *{"script": ["ends.py"], "module": ["-m", "ends"], "code": ["-c", code]}[how]]
    status, told = cold(argv, at, ENV)

    assert ended == status
    assert (status, told) == warm(argv, at, ENV)


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "x.py"],
        ["sh", "-c", "python x.py"],
        ["python"],
        ["python", "-"],
        ["python", "-i", "x.py"],
        ["python", "-V"],
        ["python", "--version"],
        ["python", "-x", "x.py"],
        ["python", "-m"],
        ["python", "x.pyc"],
        ["python", "-u"],
        ["pythonista", "x.py"],
        [],
    ],
)
def test_what_is_no_python_command_has_none(words: list[str]) -> None:
    """Nor one that Python would read from a terminal."""
    assert split(words) is None


@pytest.mark.parametrize(
    ("words", "interpreter", "rest"),
    [
        (["/v/bin/python3.12", "x.py", "-m"], ["/v/bin/python3.12"], ["x.py", "-m"]),
        (["python", "-um", "x", "y"], ["python", "-u"], ["-m", "x", "y"]),
        (["python", "-mx", "y"], ["python"], ["-m", "x", "y"]),
        (["python", "-Xdev", "-cpass"], ["python", "-Xdev"], ["-c", "pass"]),
    ],
)
def test_flags_stay_with_the_interpreter(words: list[str], interpreter: list[str], rest: list[str]) -> None:
    """And the rest is what it runs."""
    assert (interpreter, rest) == split(words)


def test_while_it_waits_it_is_the_first_to_go(at: Path) -> None:
    """When memory runs out the kernel ends it before anything that trains; it holds a known amount, and ends when told."""
    made, _ = started([sys.executable, "says.py"], at, ENV)
    assert "1000\n" == Path(f"/proc/{made.pid}/oom_score_adj").read_text()
    assert 1_000_000 < made.memory_bytes == memory_of(made.pid)
    made.kill()
    until(lambda: not made.is_alive())
    memory = made.memory_bytes
    made.close()

    assert (False, 0) == (made.is_alive(), memory)
    assert not Path(f"/proc/{made.pid}").exists()


def test_while_it_waits_it_asks_nothing_of_a_gpu(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It imports torch and asks no name of it: a context on a GPU, which `torch.cuda` makes, would take that from the trainer."""
    monkeypatch.setattr(standby, "MODULES", ("torch",))
    (at / "torch.py").write_text(TELLTALE)
    made, _ = started([sys.executable, "says.py"], at, ENV)
    opened = [os.readlink(link) for link in Path(f"/proc/{made.pid}/fd").iterdir()]
    made.kill()
    until(lambda: not made.is_alive())
    made.close()

    assert "imported" == (at / "asked").read_text()
    assert [] == [path for path in opened if path.startswith(("/dev/nvidia", "/dev/dri", "/dev/kfd"))]


TELLTALE = """
import pathlib
ASKED = pathlib.Path(__file__).with_name("asked")
ASKED.write_text("imported")

def __getattr__(name):
    if not name.startswith("__"):
        ASKED.write_text(name)
    raise AttributeError(name)
"""
"""A module that tells of the last name that was asked of it."""


def test_one_that_somebody_stopped_is_not_ready_until_it_goes_on(at: Path) -> None:
    """It would become a trainer that stands still."""
    made, _ = started([sys.executable, "says.py"], at, ENV)
    os.kill(made.pid, signal.SIGSTOP)
    until(lambda: not made.is_ready())
    os.kill(made.pid, signal.SIGCONT)
    until(made.is_ready)
    made.kill()
    until(lambda: not made.is_alive())
    made.close()


def test_a_module_beside_the_script_that_others_would_import_is_not_run(
    at: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called like one of Python's own, and the script may never import it."""
    monkeypatch.setattr(standby, "MODULES", ("cProfile",))
    (at / "profile.py").write_text(TELLTALE)
    argv = [sys.executable, "says.py"]
    made, words = started(argv, at, ENV)
    told = outcome(made.become(argv, words, env=ENV, cwd=str(at), group=None))

    assert 0 == told[0], told[1]
    assert not (at / "asked").exists()


def test_what_an_import_sets_for_the_process_is_not_there_before_the_first_line(
    at: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable, and the folder for temporary files, which the script may choose before it asks."""
    monkeypatch.setattr(standby, "MODULES", ("setting",))
    (at / "setting.py").write_text("import os, tempfile\nos.environ['SET'] = tempfile.gettempdir()")
    (at / "train.py").write_text(
        "import os\nos.environ['TMPDIR'] = os.getcwd()\nimport tempfile\nprint(tempfile.gettempdir(), os.environ.get('SET'))"
    )
    argv = [sys.executable, "train.py"]
    made, words = started(argv, at, ENV)

    assert (0, f"{at} None\n") == cold(argv, at, ENV)
    assert (0, f"{at} None\n") == outcome(made.become(argv, words, env=ENV, cwd=str(at), group=None))


def test_a_script_that_went_meanwhile_ends_it_as_it_would_a_cold_one(at: Path) -> None:
    """With Python's own words and status."""
    (at / "train.py").write_text("print(1)")
    argv = [sys.executable, "train.py"]
    made, words = started(argv, at, ENV)
    (at / "train.py").unlink()

    assert cold(argv, at, ENV) == outcome(made.become(argv, words, env=ENV, cwd=str(at), group=None))


def test_one_that_is_dead_is_not_ready_and_cannot_be_told(at: Path) -> None:
    """Whoever wanted it hears so, and starts the command as ever."""
    made, words = started([sys.executable, "says.py"], at, ENV)
    os.kill(made.pid, signal.SIGKILL)
    until(lambda: not made.is_alive())

    assert not made.is_ready()
    with pytest.raises(OSError, match=re.compile("broken pipe|reset", re.IGNORECASE)):
        made.become(words, words, env=ENV, cwd=str(at), group=None)
    made.close()


def test_it_ends_with_whoever_started_it(at: Path) -> None:
    """Nobody there to say what to become: then there is nothing to become."""
    made, _ = started([sys.executable, "says.py"], at, ENV)
    made._channel.close()

    assert 0 == until(made._child.poll_exit).code
    made.close()
