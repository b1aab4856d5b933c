"""A headless Chromium, driven through the DevTools protocol with the standard library.

`Browser` starts it, and `Tab` is one page in it. Everything waits for conditions.
"""

import base64
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import time

from tests.waiting import HANG, wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


def find():
    """The path of a browser; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class WebSocket:
    """A client that sends and receives texts."""

    def __init__(self, port, path):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=HANG)
        self._buffer = b""
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in self._buffer:
            self._receive()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        assert b" 101 " in head.split(b"\r\n")[0], head

    def _receive(self):
        data = self._socket.recv(2**16)
        assert data, "the browser has closed the connection"
        self._buffer += data

    def _take(self, count):
        while len(self._buffer) < count:
            self._receive()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _send_frame(self, kind, payload):
        mask = os.urandom(4)
        size = len(payload)
        if size < 126:
            head = struct.pack("!BB", 0x80 | kind, 0x80 | size)
        elif size < 2**16:
            head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | kind, 0x80 | 127, size)
        masked = bytes(b ^ mask[i % 4] for i, b in enumerate(payload))
        self._socket.sendall(head + mask + masked)

    def send(self, text):
        self._send_frame(1, text.encode())

    def receive(self):
        message = b""
        while True:
            first, second = self._take(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", self._take(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._take(8))
            payload = self._take(size)
            kind = first & 0x0F
            if kind == 9:
                self._send_frame(10, payload)
            elif kind in (0, 1, 2):
                message += payload
                if first & 0x80:
                    return message.decode()
            else:
                assert kind == 10, "the browser has closed the connection"

    def close(self):
        self._socket.close()


class Browser:
    def __init__(self, profile):
        profile = pathlib.Path(profile)
        self._process = subprocess.Popen(
            [find(), *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port_file = profile / "DevToolsActivePort"

        def started():
            assert self._process.poll() is None, "the browser has ended"
            with contextlib.suppress(FileNotFoundError):
                return port_file.read_text().count("\n") and port_file.read_text()

        port, path = wait_until(started).split()
        self._socket = WebSocket(int(port), path)
        self._numbers = itertools.count(1)
        self._tabs = {}

    def call(self, method, session=None, **parameters):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.receive())
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            tab = self._tabs.get(answer.get("sessionId"))
            if tab is not None and "method" in answer:
                tab._event(answer["method"], answer["params"])

    def open(self, url, width=1200, height=800, dark=False, cache=True):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        tab = Tab(self, target, attached["sessionId"])
        self._tabs[tab.session] = tab
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        tab.call("Network.setCacheDisabled", cacheDisabled=not cache)
        tab.resize(width, height)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        ]
        tab.call("Emulation.setEmulatedMedia", features=features)
        tab.go(url)
        return tab

    def close(self):
        with contextlib.suppress(Exception):
            self.call("Browser.close")
        self._socket.close()
        try:
            self._process.wait(HANG)
        finally:
            self._process.kill()


class Tab:
    """One page.

    Attributes:
        requests: the URLs of all requests of the page.
        received: the size of all answers in bytes, as they were sent.
        problems: exceptions and errors of the page.
        dialogs: the texts of dialogs that it has opened.
    """

    def __init__(self, browser, target, session):
        self._browser = browser
        self._target = target
        self.session = session
        self.requests = []
        self.received = 0
        self.problems = []
        self.dialogs = []

    def call(self, method, **parameters):
        return self._browser.call(method, self.session, **parameters)

    def _event(self, method, parameters):
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Network.loadingFinished":
            self.received += parameters["encodedDataLength"]
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            text = details.get("exception", {}).get("description", details["text"])
            self.problems.append(text)
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(parameters["message"])

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait(
            "document.readyState === 'complete' && location.href !== 'about:blank'"
        )

    def evaluate(self, expression):
        """The value of an expression, which may be a promise."""
        result = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression):
        """Waits until an expression is true; returns its value."""
        end = time.monotonic() + HANG
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"{expression} never became true"
            time.sleep(0.02)
        return value

    def resize(self, width, height):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def screenshot(self, path=None):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        image = base64.b64decode(data)
        if path is not None:
            pathlib.Path(path).write_bytes(image)
        return image

    def center(self, selector):
        """The center of the first element of a CSS selector, in the window."""
        return self.evaluate(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect();"
            "return [b.left + b.width / 2, b.top + b.height / 2, b.width, b.height];"
            "})()"
        )

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector, count=1):
        x, y, _, _ = self.center(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=count)

    def drag(self, start, end, modifiers=0):
        self.mouse("mouseMoved", *start, modifiers=modifiers)
        self.mouse(
            "mousePressed", *start, button="left", clickCount=1, modifiers=modifiers
        )
        for i in (1, 2, 3):
            x, y = (a + (b - a) * i / 3 for a, b in zip(start, end, strict=True))
            self.mouse(
                "mouseMoved", x, y, button="left", modifiers=modifiers, buttons=1
            )
        self.mouse(
            "mouseReleased", *end, button="left", clickCount=1, modifiers=modifiers
        )

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" and len(key) == 1 else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self._target)
