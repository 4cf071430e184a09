"""A real browser, driven through its debugging protocol."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """A page in headless chromium, driven through its debugging protocol."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._number = 0
        self.complaints: list[Any] = []

    async def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            message = await self._socket.receive_json(timeout=20)
            if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.complaints.append(message["params"])
            if message.get("id") == self._number:
                return message["result"]

    async def evaluate(self, script: str) -> Any:
        told = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, script: str) -> Any:
        """The value of a script once it is true."""
        for _ in range(800):
            value = await self.evaluate(script)
            if value:
                return value
            await asyncio.sleep(0.05)
        raise AssertionError(f"it did not come true: {script}")


@contextmanager
def chromium(profile: Path, *words: str) -> Iterator[str]:
    """The address of its debugger."""
    process = subprocess.Popen(
        [
            str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
            f"--user-data-dir={profile}", *words, "about:blank",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "DevTools listening" in line)
        yield re.sub(r".*ws://([^/]+)/.*\n", r"http://\1", line)
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


@asynccontextmanager
async def opened(address: str, url: str) -> AsyncIterator[Browser]:
    """A page in the browser with this debugger, once it is complete."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{address}/json/list") as answer:
            tabs = json.loads(await answer.text())
        tab = next(tab for tab in tabs if tab["type"] == "page")
        async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            page = Browser(socket)
            await page.call("Log.enable")
            await page.call("Runtime.enable")
            await page.call("Page.navigate", url=url)
            await page.until(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")
            yield page
