"""What the pages of this API share: where they are, and a few lines of script."""

from __future__ import annotations

from penstock.api.endpoint import Call, Endpoint, Reply
from penstock.rest.page import HEADERS, Site, sheet

#: Fetches the page anew while somebody looks at it, and shows how fast counts grow.
SCRIPT = """\
"use strict";
const EVERY_MS = 5000;
const counts = () => new Map([...document.querySelectorAll("[data-key]")].map(e => [e.dataset.key, +e.dataset.count]));
let seen = performance.now();
async function again() {
  try {
    if (!document.hidden) {
      const answer = await fetch(location.href, {cache: "no-store"});
      if (!answer.ok) throw new Error(answer.status);
      const text = await answer.text();
      const before = counts(), now = performance.now(), seconds = (now - seen) / 1000;
      const page = new DOMParser().parseFromString(text, "text/html");
      document.querySelector("main").replaceWith(page.querySelector("main"));
      for (const cell of document.querySelectorAll("[data-key]")) {
        const rate = (cell.dataset.count - before.get(cell.dataset.key)) / seconds;
        if (rate >= 0) cell.title = cell.textContent + " since the start";
        if (rate > 0) cell.textContent += " (" + (rate < 10 ? rate.toFixed(1) : Math.round(rate)) + "/s)";
      }
      seen = now;
      document.body.classList.remove("stale");
    }
  } catch {
    document.body.classList.add("stale");
  }
  setTimeout(again, EVERY_MS);
}
setTimeout(again, EVERY_MS);
"""


def site(version: str) -> Site:
    """Return where pages are."""
    links = (("Overview", "/"), ("API", "/docs"), ("OpenAPI", "/api/v1/openapi.json"), ("Metrics", "/metrics"))
    return Site(version, links, "/page.css", "/page.js")


async def show_sheet(call: Call[None, None]) -> Reply:
    """Show how pages look."""
    return sheet()


async def show_script(call: Call[None, None]) -> Reply:
    """Show what a page does by itself."""
    return Reply(SCRIPT.encode(), "text/javascript; charset=utf-8", headers=HEADERS)


ENDPOINTS = (
    Endpoint("GET", "/page.css", show_sheet, "How pages look", query=None, media_type="text/css"),
    Endpoint("GET", "/page.js", show_script, "What pages do by themselves", query=None, media_type="text/javascript"),
)
