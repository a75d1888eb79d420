"""A config file that was changed while its run goes on: what of it holds at once, what from the next start of the trainer on, and
what not before the supervisor is started again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from supervisor.errors import UsageError
from supervisor.mailbox import Mailbox, Worker
from supervisor.settings import Settings
from supervisor.trainer_side import Say

AT_ONCE = frozenset(
    {
        "restarts",
        "stall",
        "divergence",
        "notify",
        "trainer.grace_seconds",
        "run.final_step",
        "checkpoints.keep",
        "log.level",
    }
)
"""Settings, and sections of them, that are asked for whenever something is decided."""

AT_NEXT_START = frozenset({"trainer.command", "trainer.resume", "trainer.cwd", "trainer.env", "trainer.pre_start"})
"""Settings that are asked for when a trainer is started."""

VISIBLE = "CUDA_VISIBLE_DEVICES"  # which GPUs are waited for is settled when the supervisor starts


@dataclass(frozen=True)
class Reload:
    """What a file says that was read again: the settings that hold from now on, and which keys differ from those before."""

    settings: Settings
    changed: tuple[str, ...]
    at_next_start: tuple[str, ...]
    needs_restart: tuple[str, ...]


def compare(old: Settings, new: Settings) -> Reload:
    """The settings `old` with what of `new` can be taken over while a run goes on. Pure."""
    differing = [key for key in _keys() if _of(old, key) != _of(new, key)]
    changed = tuple(key for key in differing if _is_among(key, AT_ONCE) and not _is_fixed(key, old, new))
    later = tuple(key for key in differing if _is_among(key, AT_NEXT_START) and not _is_fixed(key, old, new))
    rest = tuple(key for key in differing if key not in changed and key not in later)
    return Reload(_with(old, new, (*changed, *later)), changed, later, rest)


def _keys() -> list[str]:
    """Every setting as `section.name`; what is no section is its own."""
    keys: list[str] = []
    for section, field in Settings.model_fields.items():
        model = field.annotation
        inner = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else None
        keys += [section] if inner is None else [f"{section}.{name}" for name in inner]
    return keys


def _of(settings: Settings, key: str) -> Any:
    found: Any = settings
    for part in key.split("."):
        found = getattr(found, part)
    return found


def _is_among(key: str, keys: frozenset[str]) -> bool:
    return key in keys or key.partition(".")[0] in keys


def _is_fixed(key: str, old: Settings, new: Settings) -> bool:
    """Whether a change that is harmless by itself goes with one that is not: of what the directory holds, or of who prunes."""
    if key == "checkpoints.keep":
        return old.prunes != new.prunes or old.preset.in_place is not None
    if key == "trainer.env" and old.trainer.env.get(VISIBLE) != new.trainer.env.get(VISIBLE):
        return True
    other_kind = (old.preset_name, old.policy().resume) != (new.preset_name, new.policy().resume)
    return other_kind and key in AT_NEXT_START


def _with(old: Settings, new: Settings, keys: tuple[str, ...]) -> Settings:
    parts: dict[str, Any] = {}
    for key in keys:
        section, _, name = key.partition(".")
        part = parts.get(section, getattr(old, section))
        parts[section] = part.model_copy(update={name: _of(new, key)}) if name else _of(new, key)
    return old.model_copy(update=parts)


class ReloadSide:
    """Reads the settings again when asked to, in a thread.

    `read` is None where no file holds them; `take` is given what holds from now on.
    """

    def __init__(
        self, settings: Settings, read: Callable[[], Settings] | None, mailbox: Mailbox, say: Say,
        take: Callable[[Settings], None],
    ) -> None:  # fmt: skip
        self.settings = settings
        """Those that hold now."""
        self._read = read
        self._mailbox = mailbox
        self._say = say
        self._take = take
        self._worker: Worker | None = None
        self._closed = False

    def ask(self) -> None:
        """Read them again soon. For the loop's thread."""
        if self._read is not None:
            self._worker = self._worker or Worker("reload", self._mailbox)
            self._worker.submit(self._work)

    def _work(self) -> None:
        assert self._read is not None
        try:
            new = self._read()
        except UsageError as error:
            reason = str(error)
            self._mailbox.hand(lambda: self._say("supervisor.reload_failed", {"reason": reason}))
        else:
            self._mailbox.hand(lambda: self._compare(new))

    def _compare(self, new: Settings) -> None:
        """A file that says what it said before was not meant: a terminal went away. At the end it is left to the next start."""
        if self._closed:
            return
        found = compare(self.settings, new)
        keys = {name: list(getattr(found, name)) for name in ("changed", "at_next_start", "needs_restart")}
        if any(keys.values()):
            self.settings = found.settings
            self._take(found.settings)
            self._say("supervisor.reloaded", keys)

    def close(self, until: float | None = None) -> None:
        """Leave no thread, and take nothing over any more."""
        self._closed = True
        if self._worker is not None:
            self._worker.close(until)
