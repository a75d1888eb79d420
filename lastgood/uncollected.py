"""A stretch without the collector of garbage, which would go through very many things that are made and all kept."""

import gc


class Uncollected:
    """Let no garbage be looked for inside: of ten thousand small things that are made and all kept, none is garbage."""

    def __enter__(self) -> None:
        self._collecting = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._collecting:
            gc.enable()
