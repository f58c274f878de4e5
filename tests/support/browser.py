"""A real browser without a window, spoken to by the DevTools protocol over two pipes."""

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_WAIT = 120  # seconds for an answer, on a machine that does other work
# Chromium reads file descriptor 3 and writes 4: the command after two numbers gets them there.
_WITH_PIPES = """
import os, sys
for given, wanted in zip(sys.argv[1:3], (3, 4)):
    os.dup2(int(given), wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
# Boxes of all words that are visible, cut to what their scrolling ancestors show.
_WORDS = r"""
(() => {
  const words = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const parent = node.parentElement;
    if (!parent.checkVisibility() || parent.closest("script, style, title")) continue;
    let room = [-Infinity, -Infinity, Infinity, Infinity];
    for (let it = parent; it; it = it.parentElement) {
      const style = getComputedStyle(it);
      const isClip = style.overflow !== "visible" && style.display !== "inline";
      if (it === document.body || !isClip) continue;
      const box = it.getBoundingClientRect();
      room = [Math.max(room[0], box.left), Math.max(room[1], box.top),
              Math.min(room[2], box.right), Math.min(room[3], box.bottom)];
    }
    for (const found of node.data.matchAll(/\S+/g)) {
      range.setStart(node, found.index);
      range.setEnd(node, found.index + found[0].length);
      const lines = [...range.getClientRects()].filter((it) => it.width > 0);
      for (const [line, box] of lines.entries()) {
        const shown = [Math.max(room[0], box.left), Math.max(room[1], box.top),
                       Math.min(room[2], box.right), Math.min(room[3], box.bottom)];
        if (shown[0] < shown[2] && shown[1] < shown[3])
          words.push([found[0], parent.tagName.toLowerCase(), line, lines.length, ...shown]);
      }
    }
  }
  return words;
})()
"""


class Word(NamedTuple):
    """The box of a visible word, or of one of its lines, in pixels of the window."""

    text: str
    tag: str  # tag of the element around the word
    line: int  # number of the word's line; above 0: the word is broken
    lines: int
    left: float
    top: float
    right: float
    bottom: float

    @property
    def letters(self) -> tuple[float, float]:
        """Top and bottom of the letters: a box is as high as its font, which has room for both."""
        room = (self.bottom - self.top) / 8
        return self.top + room, self.bottom - room


class Page:
    """A page that is open. ``errors`` are those of its scripts, ``requests`` all addresses."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser, self._session = browser, session
        self.errors, self.requests = list[str](), list[str]()

    def send(self, method: str, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol for this page; return its result."""
        return self._browser.send(method, self._session, **parameters)

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        found = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise AssertionError(_thrown(found["exceptionDetails"]))
        return found["result"].get("value")

    def wait_for(self, script: str, seconds: float = _WAIT) -> None:
        """Wait until a JavaScript expression is true."""
        until = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({script})"):
            assert time.monotonic() < until, f"never true: {script}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Click on the middle of an element, with the mouse."""
        x, y = self.evaluate(
            f"""(() => {{
              const found = document.querySelector({json.dumps(selector)});
              found.scrollIntoView({{block: "center", inline: "center"}});
              const box = found.getBoundingClientRect();
              return [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
            }})()"""
        )
        mouse = {"x": x, "y": y, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, **mouse)

    def write(self, selector: str, text: str) -> None:
        """Put text into a field, at the end of what it holds."""
        self.click(selector)
        self.send("Input.insertText", text=text)

    def words(self) -> list[Word]:
        """Return the boxes of all visible words."""
        return [Word(*word) for word in self.evaluate(_WORDS)]

    def broken(self) -> list[str]:
        """Return words that are broken inside; a break after a hyphen or a slash is none."""
        return sorted({it.text for it in self.words() if it.line and not set(it.text) & set("-/")})

    def overlaps(self) -> list[tuple[str, str]]:
        """Return pairs of words whose letters overlap.

        Boxes that share a pixel, as those of lines without a space between, do not count.
        """
        found = []
        words = sorted(self.words(), key=lambda it: it.letters[0])
        for place, one in enumerate(words):
            for other in words[place + 1 :]:
                if other.letters[0] >= one.letters[1] - 1:
                    break
                if min(one.right, other.right) - max(one.left, other.left) > 1:
                    found.append((one.text, other.text))
        return found

    def width(self) -> int:
        """Return the width of the page in pixels; above that of the window, it scrolls sideways."""
        return int(self.evaluate("document.documentElement.scrollWidth"))

    def screenshot(self, path: Path) -> Path:
        """Write a picture of the whole page, as PNG."""
        found = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def heard(self, event: dict[str, Any]) -> None:
        """Take an event of the protocol."""
        said = event["params"]
        match event["method"]:
            case "Runtime.exceptionThrown":
                self.errors.append(_thrown(said["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if said["type"] in ("error", "assert"):
                self.errors.append(" ".join(str(it.get("value", "")) for it in said["args"]))
            case "Log.entryAdded" if said["entry"]["level"] == "error":
                self.errors.append(said["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(said["request"]["url"])


class Browser:
    """A browser at work, whose pages share nothing with a user's."""

    def __init__(self, program: str, profile: Path) -> None:
        theirs, self._write = _apart(os.pipe())
        self._read, answers = _apart(os.pipe())
        self._buffer, self._pages, self._count = b"", dict[str, Page](), itertools.count(1)
        command = [sys.executable, "-c", _WITH_PIPES, str(theirs), str(answers), program]
        command += ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--hide-scrollbars", "--no-first-run", "--disable-background-networking"]
        command += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        with (profile / "said.txt").open("wb") as said:
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs, answers),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        os.close(theirs)
        os.close(answers)

    def open(
        self, address: str, *, width: int = 1280, height: int = 900, scheme: str = "light"
    ) -> Page:
        """Open a page in a window of this size, and wait until it has loaded.

        ``scheme`` is the user's colour scheme, ``light`` or ``dark``.
        """
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        page.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        failure = page.send("Page.navigate", url=address).get("errorText")
        assert failure is None, f"{address}: {failure}"
        page.wait_for("location.href !== 'about:blank' && document.readyState === 'complete'")
        page.evaluate("document.fonts.ready.then(() => true)")
        return page

    def send(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol; return its result."""
        number = next(self._count)
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._message()
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if "method" in answer and answer.get("sessionId") in self._pages:
                self._pages[answer["sessionId"]].heard(answer)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], _WAIT)[0], "the browser does not answer"
            part = os.read(self._read, 1 << 16)
            assert part, "the browser has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def close(self) -> None:
        """End the browser and all its processes."""
        with contextlib.suppress(AssertionError, OSError):
            self.send("Browser.close")
        os.close(self._write)
        os.close(self._read)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _apart(ends: tuple[int, int]) -> tuple[int, int]:
    """Move the ends of a pipe to descriptors above those that the browser wants."""
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def _thrown(details: dict[str, Any]) -> str:
    return str(details.get("exception", {}).get("description") or details["text"])
