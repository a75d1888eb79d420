"""The run that nobody interferes with, which the survivor is held against; made once for all that it depends on.

Only for the bundled trainer, which computes the same twice.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from supervisor.chaos.oracle import digest
from supervisor.errors import UsageError
from supervisor.launch import arguments
from supervisor.settings import Settings

FACTS_FILE = "made-with.json"
LOG_FILE = "trainer.log"
PACKAGES = ("torch", "numpy")
CODE = ("trainer", "lastgood")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def command(settings: Settings, directory: Path) -> list[str]:
    """What the unbroken run is started with."""
    return [*arguments(settings, str(directory), None), f"--out_dir={directory.absolute()}", "--resume=never"]


def environment(settings: Settings) -> dict[str, str]:
    """Its environment, in which nothing is of a supervised run."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("LASTGOOD_")
    } | settings.trainer.env


def facts(settings: Settings) -> dict[str, Any]:
    """All that what is computed depends on: config, data, code, versions, the processor's abilities, threads.

    Raises UsageError when the trainer's own settings are wrong.
    """
    words = command(settings, Path("out"))
    return {
        "words": words[1:],
        "configs": {
            word: _digest([Path(settings.trainer.cwd) / word]) for word in words if word.endswith((".yaml", ".yml"))
        },
        "environment": {name: environment(settings).get(name) for name in THREADS} | settings.trainer.env,
        "data": _data(settings, words),
        "code": {name: _digest(sorted((Path(__file__).parents[2] / name).rglob("*.py"))) for name in CODE},
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "processor": _flags(),
        "threads": len(os.sched_getaffinity(0)),
    }


def _digest(paths: list[Path]) -> str:
    """Of the names and contents of files."""
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _flags() -> list[str]:
    """What the processor can do, by which torch chooses how to sum."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return [platform.processor()]
    return sorted(
        {line.partition(":")[2].strip() for line in lines if line.startswith(("flags", "Features", "model name"))}
    )


def _data(settings: Settings, words: list[str]) -> str | None:
    """The digest of the tokens that it trains on; prepared now if they are not there yet."""
    script = "import sys; from trainer.data import digest_of, prepare; from trainer.settings import read_arguments\n"
    script += "print(digest_of(prepare(read_arguments(sys.argv[1:]))))"
    at = words.index("-m") + 2
    done = subprocess.run(
        [words[0], "-c", script, *words[at:]],
        cwd=settings.trainer.cwd, env=environment(settings), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise UsageError(
            f"chaos: the trainer's data cannot be read: {(done.stderr.strip() or 'no reason').splitlines()[-1]}"
        )
    return done.stdout.split()[-1]


class Baselines:
    """Those that were made, below one folder, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, made_with: dict[str, Any]) -> Path | None:
        """One that was finished with exactly these, and whose files are still what they were then."""
        place = self._place(made_with)
        told = _read(place / FACTS_FILE)
        if not isinstance(told, dict) or told.get("made_with") != made_with or not isinstance(told.get("files"), dict):
            return None
        there = _files(place)
        return place if all(there.get(name) == one for name, one in told["files"].items()) else None

    def begin(self, made_with: dict[str, Any]) -> Path:
        """An empty folder for one, which counts once `finished` was called."""
        place = self._place(made_with)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        return place

    def finished(self, made_with: dict[str, Any]) -> None:
        """It can be found from now on, for as long as its files are what they are now."""
        place = self._place(made_with)
        text = json.dumps({"made_with": made_with, "files": _files(place)}, indent=1)
        (place / FACTS_FILE).write_text(f"{text}\n", encoding="utf-8")

    def _place(self, made_with: dict[str, Any]) -> Path:
        return self._folder / hashlib.sha256(json.dumps(made_with, sort_keys=True).encode()).hexdigest()[:16]


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _files(place: Path) -> dict[str, list[Any]]:
    """Size in bytes and SHA-256 of each file of a baseline that the survivor is held against; none where there is no folder."""
    paths = [path for path in place.glob("*") if path.name not in (FACTS_FILE, LOG_FILE) and path.is_file()]
    return {path.name: [path.stat().st_size, digest(path)] for path in paths}
