"""A stretch without the collector of garbage, which would go through very many things that are made and all kept."""

import gc
import threading


class Uncollected:
    """Let no garbage be looked for inside: of ten thousand small things that are made and all kept, none is garbage.

    Several threads may be inside; the last one to leave has it as the first one found it.
    """

    _lock = threading.Lock()
    _inside = 0
    _collecting = False

    def __enter__(self) -> None:
        with Uncollected._lock:
            if Uncollected._inside == 0:
                Uncollected._collecting = gc.isenabled()
                gc.disable()
            Uncollected._inside += 1

    def __exit__(self, *_: object) -> None:
        with Uncollected._lock:
            Uncollected._inside -= 1
            if Uncollected._inside == 0 and Uncollected._collecting:
                gc.enable()
