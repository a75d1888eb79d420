"""Chromium without a screen, told what to do over two pipes in the DevTools protocol; no library and no port is needed."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ANSWER_SECONDS = 90.0
PIECE_BYTES = 1 << 16
WORDS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
"""As root it has no sandbox; in a container its shared memory is small."""


def program() -> str | None:
    """Where it is, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One tab. What it logs, throws and asks of any network is kept."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Have something done, and wait for the answer."""
        number = next(self._numbers)
        order: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            order["sessionId"] = self._session
        os.write(self._writer, json.dumps(order).encode() + b"\0")
        while (told := self._next()).get("id") != number:
            self._events.append(told)
        assert "error" not in told, (method, told)
        return dict(told["result"])

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._reader, PIECE_BYTES) if ready else b""
            assert piece, "the browser does not answer"
            self._rest += piece
        first, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(first))

    def look_at(self, path: Path, width: int, dark: bool = False, height: int = 900) -> None:
        """Open a file in a window of that width, and wait until it is drawn. What earlier pages did is forgotten."""
        self._events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self.darken(dark)
        self.call("Page.navigate", url=path.absolute().as_uri())
        deadline = time.monotonic() + ANSWER_SECONDS
        while not self.value("document.readyState === 'complete' && location.protocol === 'file:'"):
            assert time.monotonic() < deadline, "the page is not ready"
            time.sleep(0.05)
        self.settle()

    def darken(self, dark: bool) -> None:
        """What the person prefers, from now on."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])

    def settle(self) -> None:
        """Until two more frames were drawn."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def value(self, script: str) -> Any:
        """What a script comes to."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path: Path) -> None:
        """The whole page, as a PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def print_to(self, path: Path) -> None:
        """The page on paper, as a PDF."""
        found = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """What it logged or threw."""
        kinds = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}
        return [json.dumps(one["params"]) for one in self._events if one.get("method") in kinds]

    def requests(self) -> list[str]:
        """The addresses that it asked for, but files and what is in the page itself."""
        asked = [
            one["params"]["request"]["url"] for one in self._events if one.get("method") == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """One with a profile of its own in `folder`, which is gone afterwards."""
    found = program()
    assert found is not None
    to_it, orders = os.pipe()
    answers, from_it = os.pipe()
    line = f'exec "$@" 3<&{to_it} 4>&{from_it}'
    words = [found, *WORDS, f"--user-data-dir={folder / 'profile'}", "--remote-debugging-pipe", "about:blank"]
    environment = os.environ | {"TMPDIR": str(folder)}  # where it leaves what it does not clear away
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", line, "bash", *words],
            pass_fds=(to_it, from_it),
            env=environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    os.close(to_it)
    os.close(from_it)
    try:
        yield Browser(answers, orders)
    finally:
        process.terminate()
        process.wait(30)
        os.close(orders)
        os.close(answers)
