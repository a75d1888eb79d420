"""Says when the supervisor itself waits for long where nothing has a deadline: for a directory to be read, for its memory to
be written, for a driver, or for a process in /proc that does not answer. A stop is heard all the same.
"""

import time
from typing import Any

from supervisor.core.state import Phase, State
from supervisor.trainer_side import Say

LONG_SECONDS = 60.0  # the bytes of a large snapshot may be read in that time, or not
PHASES = frozenset({Phase.SELECTING, Phase.STARTING})


class Overdue:
    """Looks at a state as often as the loop comes round, and says once what takes long."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._seen: tuple[Phase, int] | None = None
        self._since = 0.0
        self._said = False

    def look(self, state: State, a_trainer_lives: bool) -> None:
        """A phase that a trainer is in already waits for the trainer, which has deadlines."""
        now, seen = time.monotonic(), (state.phase, state.incarnation)
        if seen != self._seen:
            self._seen, self._since, self._said = seen, now, False
        seconds = now - self._since
        if state.phase in PHASES and not a_trainer_lives and not self._said and seconds >= LONG_SECONDS:
            self._said = True
            fields: dict[str, Any] = {"phase": str(state.phase), "seconds": round(seconds, 3)}
            self._say("supervisor.delayed", fields)
