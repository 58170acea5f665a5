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
KEYS = {"ArrowUp": 38, "ArrowDown": 40, "End": 35, "Enter": 13, " ": 32}
SCREENS = [(1280, "light"), (1280, "dark"), (390, "light"), (320, "light")]

# What is wrong with a page as it stands, and opened up: a line a fault. source: WCAG 2.2, AA: 1.3.1, 1.4.3, 1.4.10, 1.4.11,
# 2.1.1, 2.5.8. Text wants a contrast of 4.5 : 1, a sign without letters 3 : 1.
FAULTS = """(() => {
  const faults = [];
  const all = (selector) => [...document.querySelectorAll(selector)].filter((node) => node.checkVisibility());
  const check = (good, what, node) => good || faults.push(`${what}: ${node.outerHTML.slice(0, 90)}`);
  const end = (cell) => {                              // of its last text, without a bar behind it
    const range = document.createRange();
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) if (walker.currentNode.data.trim()) range.selectNode(walker.currentNode);
    return range.getBoundingClientRect().right;
  };
  const compare = (node) => {
    const heading = node.closest("table").rows[0].cells[node.cellIndex];
    const right = node.textContent && getComputedStyle(node).textAlign === "right";
    check(!right || Math.abs(end(heading) - end(node)) < 2, `not below ${heading.textContent}`, node);
  };
  all("td").forEach(compare);                          // as the page is at first, and opened up
  document.querySelectorAll("details").forEach((node) => { node.open = true; });
  all("td").forEach(compare);

  const width = document.documentElement.clientWidth;
  const root = document.documentElement;
  check(root.scrollWidth <= width, `the page scrolls to ${root.scrollWidth} of ${width}`, document.body);

  const rgba = (color) => {
    const [red, green, blue, alpha = 1] = color.match(/[\\d.]+/g).map(Number);
    return [red, green, blue, alpha];
  };
  const over = (front, back) => [0, 1, 2].map((i) => front[i] * front[3] + back[i] * (1 - front[3]));
  const backing = (node) => node === null ? [255, 255, 255]
    : over(rgba(getComputedStyle(node).backgroundColor), backing(node.parentElement));
  const luminance = (color) => color
    .map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((total, part, i) => total + part * [0.2126, 0.7152, 0.0722][i], 0);
  const read = (node, said, color) => {
    const back = backing(node);
    const [low, high] = [luminance(over(rgba(color), back)), luminance(back)].sort((a, b) => a - b);
    const contrast = (high + 0.05) / (low + 0.05);
    check(contrast >= (/\\w/.test(said) ? 4.5 : 3), `contrast ${contrast.toFixed(2)}`, node);
  };
  for (const node of all("[placeholder]")) read(node, "a word", getComputedStyle(node, "::placeholder").color);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    const said = walker.currentNode.textContent.trim();
    if (said === "" || !node.checkVisibility() || node.matches("script, noscript, title")) continue;
    const style = getComputedStyle(node);
    read(node, said, node.matches("svg *") ? style.fill : style.color);
  }

  for (const node of all("body *")) {
    const style = getComputedStyle(node);
    const scrolls = (style.overflowX !== "visible" && node.scrollWidth > node.clientWidth + 1)
      || (style.overflowY !== "visible" && node.scrollHeight > node.clientHeight + 1);
    check(!scrolls || style.overflow === "hidden" || node.tabIndex >= 0, "scrolls without a key", node);
  }
  for (const node of all("table")) check(node.caption?.textContent, "no caption", node);
  for (const node of all("th")) check(node.scope, "no scope", node);
  for (const node of all("svg")) check(node.ariaHidden || node.ariaLabel, "no name", node);
  for (const node of all("output, [aria-live]")) check(node.matches("p[aria-live]"), "more than a line is live", node);
  for (const node of all("svg text")) {
    const [text, drawing] = [node, node.ownerSVGElement].map((one) => one.getBoundingClientRect());
    check(text.left >= drawing.left && text.right <= drawing.right, "a label is cut", node);
  }
  if (width < 600) {
    for (const node of all("a, button, input, select, summary, textarea")) {
      const box = node.getBoundingClientRect();
      check(Math.min(box.width, box.height) >= 24, `a target of ${box.width} x ${box.height}`, node);
    }
  }
  return faults;
})()"""


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

    def open(self, path, place="", width=1280, scheme="light"):
        """A new tab with that page, as wide as a desk's screen or a phone's."""
        self.events.clear()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        screen = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **screen)
        prefers = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[prefers])
        self.call("Page.navigate", url=path.as_uri() + place)
        self.until("document.readyState == 'complete' && location.protocol == 'file:'")

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def texts(self, selector):
        """What the elements say that it selects."""
        nodes = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return self.value(f"{nodes}.map((node) => node.textContent)")

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
                windowsVirtualKeyCode=KEYS[key],
                text={"Enter": "\r", " ": " "}.get(key, "") if kind == "keyDown" else "",
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
