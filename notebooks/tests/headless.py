"""A headless Chromium for tests of pages, without any package: `browser` is a fixture, skipped where none is installed."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time

import pytest

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
PATIENCE = (
    60  # seconds that the browser may take to answer; even the largest page takes it about one
)


class Browser:
    """A headless Chromium, driven by the DevTools protocol over two pipes: JSON messages, each ended by a NUL."""

    def __init__(self, profile):
        (self.read_end, theirs_out), (theirs_in, self.write_end) = os.pipe(), os.pipe()
        # The browser reads from descriptor 3 and writes to 4; copies above 9 so that neither is in the way.
        fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs_in, theirs_out)]
        start = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
            "os.execv(sys.argv[3], sys.argv[3:])"
        )
        flags = [
            "--headless",
            "--remote-debugging-pipe",
            "--disable-gpu",
            f"--user-data-dir={profile}",
        ]
        flags += ["--no-sandbox"] * (os.geteuid() == 0)
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, *map(str, fds), BROWSER, *flags],
            pass_fds=fds,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for fd in (theirs_in, theirs_out, *fds):
            os.close(fd)
        self.buffer, self.events, self.number, self.session = b"", [], 0, None

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.read_end)
        os.close(self.write_end)

    def call(self, method, **params):
        """Send a command, and wait for its answer; what happens meanwhile is kept in `events`."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while True:
            while b"\0" not in self.buffer:
                ready, _, _ = select.select([self.read_end], [], [], max(0, end - time.monotonic()))
                data = os.read(self.read_end, 2**20) if ready else b""
                assert data, f"the browser did not answer {method}"
                self.buffer += data
            text, _, self.buffer = self.buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def open(self, path, place=""):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=path.as_uri() + place)
        self.until("document.readyState == 'complete' && location.protocol == 'file:'")

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression):
        end = time.monotonic() + PATIENCE
        while not self.value(expression):
            assert time.monotonic() < end, f"never became true: {expression}"
            time.sleep(0.02)

    def click(self, expression):
        """A press and release of the mouse in the middle of that element, as a hand does it."""
        x, y = self.value(
            f"(() => {{ const node = {expression}; node.scrollIntoView({{block: 'center'}}); "
            "const box = node.getBoundingClientRect(); "
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode={"ArrowUp": 38, "ArrowDown": 40, "End": 35}[key],
            )

    def troubles(self):
        """Errors, warnings and dialogs so far."""
        kinds = (
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Log.entryAdded",
            "Page.javascriptDialogOpening",
        )
        return [event for event in self.events if event.get("method") in kinds]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not BROWSER:
        pytest.skip(
            "no headless browser is installed: apt-get install chromium-headless-shell, or any Chromium"
        )
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
