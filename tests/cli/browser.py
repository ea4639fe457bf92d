"""One Chromium for all pages of a suite, asked over its pipe (DevTools protocol): to start one takes a second."""
import atexit
import contextlib
import functools
import json
import os
import shutil
import subprocess
import tempfile

CHROMIUM = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")) if path), None)


class Browser:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="dpro-test-")
        (to, into), (out, back) = os.pipe(), os.pipe()
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to} 4>&{back}', "bash", CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu",
             "--allow-file-access-from-files", f"--user-data-dir={self.folder}", "--remote-debugging-pipe"],
            pass_fds=(to, back), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to)
        os.close(back)
        self.requests, self.answers = open(into, "wb", buffering=0), open(out, "rb")
        self.asked, self.session = 0, {}

    def close(self):
        self.session = {}
        self.call("Browser.close")
        self.process.wait(timeout=60)
        self.requests.close()
        self.answers.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method, event=None, **params):
        """The answer; of a call with an event, what the browser tells when that has happened."""
        self.asked += 1
        self.requests.write(json.dumps({"id": self.asked, "method": method, "params": params, **self.session}).encode() + b"\0")
        while True:
            told = json.loads(b"".join(iter(lambda: self.answers.read(1), b"\0")))
            if told.get("id") == self.asked and "error" in told:
                raise RuntimeError(f"{method}: {told['error']}")
            if told.get("id") == self.asked and not event:
                return told["result"]
            if event and told.get("method") == event:
                return told["params"]

    @contextlib.contextmanager
    def page(self, path, width=800, height=600, ms=3000):
        """Opens a page; `ms` of its own time have passed."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.call("Emulation.setVirtualTimePolicy", policy="pause")
        self.call("Page.navigate", url="file://" + path)
        self.wait(ms)
        yield
        self.session = {}
        self.call("Target.closeTarget", targetId=target)

    def wait(self, ms):
        """Lets time pass for the page: its own, which stands still else and doesn't depend on how busy the machine is."""
        self.call("Emulation.setVirtualTimePolicy", event="Emulation.virtualTimeBudgetExpired",
                  policy="pauseIfNetworkFetchesPending", budget=ms)

    def evaluate(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def dom(self, path, **more):
        """A page's elements once its scripts have run."""
        with self.page(path, **more):
            return self.evaluate("document.documentElement.outerHTML")

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)


@functools.cache
def browser():
    started = Browser()
    atexit.register(started.close)
    return started
