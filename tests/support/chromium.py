# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium, started once and driven over a pipe: pages at any width, light or dark, what they log, their pictures."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--no-first-run", "--hide-scrollbars",
)  # fmt: skip


def browser() -> str:
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium")
    return found


class Chromium:
    """A browser and its one tab. Commands are those of the DevTools protocol: JSON, each message ended by a zero byte, on file
    descriptors 3 and 4 of the browser."""

    def __init__(self, profile: Path) -> None:
        to_browser, self._commands = os.pipe()
        self._answers, from_browser = os.pipe()
        # descriptors 3 and 4 are often taken in this process: one of their own renames the ends
        rename = (
            "import os, sys; from fcntl import F_DUPFD, fcntl; "
            f"a, b = fcntl({to_browser}, F_DUPFD, 10), fcntl({from_browser}, F_DUPFD, 10); os.dup2(a, 3); os.dup2(b, 4)"
        )
        start = [sys.executable, "-ISc", f"{rename}; os.execv(sys.argv[1], sys.argv[1:])", browser()]
        self._process = subprocess.Popen(
            [*start, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe"],
            pass_fds=(to_browser, from_browser),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._rest, self._number, self._session = b"", 0, ""
        self.log: list[str] = []
        self.requests: list[str] = []
        tab = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, page: Path, width: int = 1440, dark: bool = False, before: str = "") -> None:
        """Load ``page``; ``before``: a script that runs before any of its own. ``log`` and ``requests`` begin again."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=features)
        script = self._call("Page.addScriptToEvaluateOnNewDocument", source=before)["identifier"]
        self.log, self.requests = [], []
        self._call("Page.navigate", url=page.as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass
        self._call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)

    def evaluate(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is, as JSON carries it."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        shown = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shown["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self._call("Page.printToPDF")["data"])

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in (self._commands, self._answers):
            os.close(end)
        self._process.terminate()
        self._process.wait(30)

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _receive(self) -> Mapping[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._answers, 1 << 20)
            assert more, "the browser has gone"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        match message.get("method"):
            case "Log.entryAdded":
                self.log.append(message["params"]["entry"]["text"])
            case "Runtime.consoleAPICalled":
                self.log.append(str(message["params"]["args"]))
            case "Runtime.exceptionThrown":
                self.log.append(str(message["params"]["exceptionDetails"]))
            case "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
        return message
