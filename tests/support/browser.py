"""Debian's Chromium without a window, driven over its DevTools protocol: one page."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.waiting import until

OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
    "--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage",
)  # fmt: skip


class Page:
    """One open page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self.messages: list[str] = []  # errors of its scripts and of its policy, as JSON

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        await self._socket.send_json(command)
        while True:
            answer = await self._socket.receive_json(timeout=60)
            if answer.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.messages.append(json.dumps(answer["params"]))
            if answer.get("id") == self._number:
                result: dict[str, Any] = answer["result"]
                return result

    async def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    async def size(self, width: int, height: int) -> None:
        """Make the window that large; a narrow one is a phone's."""
        size = {"width": width, "height": height}
        await self.ask(
            "Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=width < 600
        )

    async def picture(self, path: Path) -> None:
        """Write a screenshot."""
        found = await self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(found["data"]))


@contextlib.asynccontextmanager
async def browsing(url: str) -> AsyncIterator[Page]:
    """Open the URL in a browser of its own, which ends with the block."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium: apt install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = [program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        process = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            port_file = Path(profile) / "DevToolsActivePort"
            await until(lambda: port_file.exists() and bool(port_file.read_text()))
            port = port_file.read_text().split()[0]
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    targets = await answer.json()
                found = next(each for each in targets if each["type"] == "page")
                address = found["webSocketDebuggerUrl"]
                async with session.ws_connect(address, max_msg_size=1 << 26) as socket:
                    page = Page(socket)
                    for domain in ("Page", "Runtime", "Log"):
                        await page.ask(f"{domain}.enable")
                    await page.ask("Page.navigate", url=url)
                    yield page
        finally:
            process.kill()
            await process.wait()
