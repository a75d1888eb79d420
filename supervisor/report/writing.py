"""Where a report is written, and whether that can be done: asked before anything is begun."""

import importlib.util
import os

from lastgood.publish import fsync_folder, write_durably
from supervisor.cli.text import FORBIDDEN, shown
from supervisor.errors import UsageError
from supervisor.report.model import Report
from supervisor.report.page import page

CURE = "`pip install 'lastgood[report]'`"


def need_plotly(command: str) -> None:
    """Raises UsageError when there is nothing to draw charts with."""
    if importlib.util.find_spec("plotly") is None:
        raise UsageError(f"{command}: the charts of a report are drawn by plotly, which is not installed; {CURE}")


def need_place(command: str, path: str) -> None:
    """Raises UsageError when no file can be written there."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UsageError(f"{command}: {shown(path)}: there is no folder {shown(folder)}; make it first")
    if not os.path.basename(path) or os.path.isdir(path):
        raise UsageError(f"{command}: {shown(path)} is a folder; give the name of a file")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise UsageError(f"{command}: {shown(path)} is no regular file; give the name of one, or of none")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{command}: {shown(folder)}: {FORBIDDEN.replace('read', 'write')}")


def write_page(path: str, report: Report) -> None:
    """The page, all at once. Raises OSError."""
    from plotly.offline import get_plotlyjs  # five megabytes, which nothing else needs

    write_whole(path, page(report, get_plotlyjs()))


def write_whole(path: str, text: str) -> None:
    """A file that is there as a whole, or as it was before; once this returns, also after a power cut. Raises OSError."""
    write_durably(path, text.encode("utf-8"))
    fsync_folder(os.path.dirname(os.path.abspath(path)))
