"""`python -m tests.crash.held BEHIND AT HOLD`: serve the folder BEHIND at AT, answering no write and no fsync while HOLD exists.

Whoever waits for an answer that the server has begun to work on is in uninterruptible sleep, and SIGKILL does not end it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench import until
from tests.crash import disks

LOOK_SECONDS = 0.02
THREADS = 32  # as many can wait at a time


def why_not() -> str | None:
    """Why nothing can be served here, or None when it can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    try:
        import mfusepy  # noqa: F401 - to see whether it finds the system's library
    except (ImportError, OSError) as error:
        return f"no FUSE library: {error}"
    return None


@contextmanager
def served(folder: Path) -> Iterator[tuple[Path, Path]]:
    """A mount below `folder`, and the file that holds it up as long as it exists."""
    behind, at, hold = folder / "behind", folder / "at", folder / "hold"
    behind.mkdir()
    at.mkdir()
    words = [sys.executable, "-m", "tests.crash.held", str(behind), str(at), str(hold)]
    server = subprocess.Popen(words, cwd=Path(__file__).parents[2])
    try:
        until(lambda: os.path.ismount(at) or server.poll() is not None)
        assert server.poll() is None, "the server has ended"
        yield at, hold
    finally:
        hold.unlink(missing_ok=True)
        if os.path.ismount(at):
            disks.detach(at)
        server.terminate()
        server.wait()


def _serve(behind: str, at: str, hold: str) -> None:
    import mfusepy

    class Held(mfusepy.Operations):  # type: ignore[misc]  # it has no stubs
        """What the tests' trainers do with files."""

        use_ns = True

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            found = os.lstat(behind + path)
            return {name: getattr(found, name) for name in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size")}

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *os.listdir(behind + path)]

        def create(self, path: str, mode: int, fi: object = None) -> int:
            return os.open(behind + path, os.O_RDWR | os.O_CREAT, mode)

        def open(self, path: str, flags: int) -> int:
            return os.open(behind + path, os.O_RDWR)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            self._wait()
            return os.pwrite(fh, data, offset)

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            self._wait()
            os.fsync(fh)
            return 0

        def release(self, path: str, fh: int) -> int:
            os.close(fh)
            return 0

        def _wait(self) -> None:
            while os.path.exists(hold):
                time.sleep(LOOK_SECONDS)

    mfusepy.FUSE(Held(), at, foreground=True, max_threads=THREADS)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
