"""The web page of the daemons: from one server, without HTML of peers, readable on a phone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import AsyncIterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cli.status_documents import document, line
from tests.support.browser import Page, browsing
from walkeeper_admin.status import with_verdict
from walkeeper_common.shell.http.http_endpoints import Endpoints, serve_http
from walkeeper_common.shell.http.http_locks import use_http_token
from walkeeper_common.shell.http.web_page import FILES, POLICY
from walkeeper_common.shell.log_lines.recent_events import EVENTS_MAX, RecentEvents
from walkeeper_lab.up import page_link

HOSTILE = "<img src=x onerror=document.title=1>"
PAGE = files("walkeeper_common.shell.http.page")


@contextlib.asynccontextmanager
async def served(status: Mapping[str, Any]) -> AsyncIterator[str]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    shown = Endpoints(lambda: None, lambda: status, list)
    running = asyncio.create_task(
        serve_http(("127.0.0.1", 0), shown, on_listening=lambda _, found: port.set_result(found))
    )
    try:
        yield f"http://127.0.0.1:{await port}"
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_the_page_comes_with_a_policy_that_forbids_other_servers() -> None:
    async def body() -> None:
        async with served({}) as url, aiohttp.ClientSession() as session:
            for path in FILES:
                async with session.get(url + path) as answer:
                    assert answer.status == 200 and await answer.text()
                    assert answer.headers["Content-Security-Policy"] == POLICY

    asyncio.run(body())


def test_the_pages_files_name_no_other_server_and_make_no_html_of_texts() -> None:
    for name, _ in FILES.values():
        text = (PAGE / name).read_text(encoding="utf-8")
        found = set(re.findall(r"https?://[^\s\"')]+", text))
        assert found <= {"http://www.w3.org/2000/svg"}, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
        assert not re.search(r"<script>|<style>|style=|\son\w+=", text), name


def test_status_has_the_last_lines_of_the_log_but_no_audit_lines() -> None:
    events = RecentEvents()
    for number in range(EVENTS_MAX + 1):
        events.emit(
            logging.LogRecord("walkeeper", logging.WARNING, "", 0, f"n{number}", None, None)
        )
    events.emit(logging.LogRecord("walkeeper.audit", logging.INFO, "", 0, "peer", None, None))
    shown = events.shown()
    assert (len(shown), shown[0]["text"], shown[-1]["text"]) == (EVENTS_MAX, "n1", f"n{EVENTS_MAX}")
    assert shown[0]["level"] == "WARNING" and str(shown[0]["time"]).endswith("Z")


def of_a_change() -> dict[str, Any]:
    """Return the status of `up` with spares, and with two newcomers that learn."""
    found, learning = of_a_cluster(), {"flush_lsn": "0/2", "free_bytes": 1 << 30, "fsync_s": 0.1}
    found["safekeepers"] += [line(4, **learning, repairs=2), line(5, **learning)]
    found["cluster"] |= {"members": ["1#aa", "2#bb", "3#cc"], "spares": ["6@10.0.0.6:5454"]}
    found["cluster"]["changing"] = {
        "members": [1, 2, 3, 4, 5], "leaving": [], "joining": [4, 5], "ack_quorum": 3,
        "is_learning": True, "bytes_to_go": 700 << 20,
    }  # fmt: skip
    return found


def of_a_cluster() -> dict[str, Any]:
    """Return the status of `up` with one safekeeper away, and with hostile names."""
    history = [
        {"term": term, "start_lsn": f"0/{term}000000", "timeline": 1 + term // 5, "sealed": False}
        for term in range(1, 9)
    ]
    standby = {
        "application_name": HOSTILE, "client_addr": "10.0.0.9", "state": "streaming",
        "flush_lsn": "0/5", "slot_name": "s1",
    }  # fmt: skip
    more = {"free_bytes": 9 << 30, "fsync_s": 0.0012, "history": history, "standbys": [standby]}
    away = line(3, reachable=False, error="no route to host", flush_lsn=None, term=None)
    found = document(line(1, **more), line(2, **more), away)
    found["cluster"] |= {"quorum": True, "proposer": {"application_name": "walkeeper"}}
    found["cluster"] |= {"primary": None, "ack_quorum": 2, "kind": "physical"}
    events = [{"time": "2026-11-26T03:00:00Z", "level": "ERROR", "text": f"commits hang {HOSTILE}"}]
    return {**with_verdict(found), "events": events}


async def wait_shown(page: Page, text: str) -> None:
    body = "document.body && document.body.innerText"
    async with asyncio.timeout(120):
        while text not in str(await page.value(body)):  # noqa: ASYNC110  (another process)
            await asyncio.sleep(0.1)


@pytest.mark.soak
def test_a_browser_opens_the_link_with_the_token_without_a_question(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("0123456789abcdef")

    async def body() -> None:
        async with served(of_a_cluster()) as url:
            link = page_link(url.removeprefix("http://"), "0123456789abcdef")
            async with browsing(link) as page:
                await wait_shown(page, "safekeeper 3")
                assert not page.messages

    use_http_token(str(token))
    try:
        asyncio.run(body())
    finally:
        use_http_token(None)


@pytest.mark.soak
def test_a_browser_shows_who_is_away_and_a_phone_needs_no_scrolling(tmp_path: Path) -> None:
    pictures = Path(os.environ.get("WALKEEPER_PICTURES", str(tmp_path)))

    async def body() -> None:
        status = of_a_cluster()
        async with served(status) as url, browsing(url) as page:
            await page.size(1200, 1100)
            await wait_shown(page, "safekeeper 3")
            await wait_shown(page, "timeline 2")
            assert await page.value("document.querySelectorAll('svg rect').length") == 8
            assert await page.value("document.querySelectorAll('img').length") == 0
            assert await page.value("document.title") == "WARNING walkeeper"
            await page.picture(pictures / "page.png")
            await page.size(390, 844)
            wide = "document.documentElement.scrollWidth > window.innerWidth"
            assert await page.value(wide) is False
            await page.picture(pictures / "phone.png")
            status.update(of_a_change())
            await wait_shown(page, "700.0 MB")
            shown = str(await page.value("document.body.innerText"))
            assert "6@10.0.0.6:5454" in shown and shown.count("learns") == 2
            assert "segments rewritten: 2" in shown and await page.value(wide) is False
            await page.picture(pictures / "phone_change.png")
            status["verdict"]["text"] = "all is well again"
            await wait_shown(page, "all is well again")
            assert not page.messages

    asyncio.run(body())
