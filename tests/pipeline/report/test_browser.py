"""A simulated day's report: its sums, and the page in a real browser, where every plot is drawn."""

from __future__ import annotations

import html
import itertools
import json
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.jobs.report import Page, Report, report
from tests.pipeline.report.simulation import HOUR_US, Simulation

#: A browser that asks nobody for anything and keeps nothing.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr",
)  # fmt: skip
#: Writes down what the browser made of every plot and every mark in it.
PROBE = """<script>
const boxes = (among, what) => [...among.querySelectorAll(what)].map(each => each.getBoundingClientRect());
const plots = [...document.querySelectorAll("svg")].map(plot => ({
  name: plot.getAttribute("aria-label") || plot.querySelector("title").textContent,
  box: [plot.getBoundingClientRect().width, plot.getBoundingClientRect().height],
  marks: boxes(plot, ".mark").map(box => [box.width, box.height]),
  texts: boxes(plot, "text").map(box => [box.width, box.height, box.left, box.right]),
  labels: boxes(plot, "text.x").filter(box => box.width).map(box => [box.top, box.left, box.right]),
  fills: [...plot.querySelectorAll(".mark")].map(mark => getComputedStyle(mark).fill + getComputedStyle(mark).stroke),
}));
const wide = document.body.scrollWidth - document.documentElement.clientWidth;
const tables = [...document.querySelectorAll(".table")].map(each => each.scrollWidth - each.clientWidth);
document.body.insertAdjacentHTML("beforeend", "<pre id=found></pre>");
document.getElementById("found").textContent = JSON.stringify({plots, wide, tables});
</script>"""


@pytest.fixture(scope="module")
def page(spark: SparkSession) -> Page:
    return report(*Simulation(2000, hours=6).frames(spark), Report(title="A day & a <night>"))


def browse(tmp_path: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("chromium")
    assert program, "chromium is missing: apt-get install chromium"
    command = [program, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *words, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_a_simulated_day_adds_up(page: Page) -> None:
    found = page.figures
    assert found.messages == 2000
    orders = next(each for each in found.topics if each.name == "orders")
    assert orders.messages == 840 == sum(sum(course.messages) for course in orders.traffic.values())
    billing = next(each for each in orders.subscriptions if each.name == "billing")
    assert sum(billing.attempts.values()) == billing.latency_us.total
    assert billing.delivered == billing.acked + billing.released + billing.expired
    assert billing.latency_us.percentile(0.5) == pytest.approx(2000, rel=0.15)
    assert billing.lease_us.percentile(0.5) == pytest.approx(40_000, rel=0.15)
    assert found.span.until_us - found.span.since_us <= 6 * HOUR_US
    advised = {each.name: each.advice.penstock for each in found.topics if each.advice is not None}
    assert (advised["orders"], advised["thumbnails"]) == ("zstd", "none")


#: A window is not narrower than this, but a page may be.
WINDOW_MIN = 500


@pytest.mark.parametrize("width", [1280, 420])
def test_every_plot_is_drawn_in_a_browser(page: Page, tmp_path: Path, width: int) -> None:
    probed = tmp_path / "probed.html"
    narrow = f"<style>html{{width:{width}px}}</style>"
    probed.write_text(page.html.replace("</body>", narrow + PROBE + "</body>"), encoding="utf-8")
    done = browse(tmp_path, probed.as_uri(), f"--window-size={max(width, WINDOW_MIN)},1000", "--dump-dom")
    assert complaints(done) == []
    seen = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert seen is not None
    found = json.loads(html.unescape(seen[1]))
    assert found["wide"] <= 0  # tables scroll by themselves, the page does not
    assert (max(found["tables"]) > 50) == (width == 420)
    names = [plot["name"] for plot in found["plots"]]
    assert {"Messages by topic", "Messages by dialect", "Latency by percentile", "Lease time by percentile",
            "Median latency over time", "Messages by attempts", "Discards by reason", "Sizes in orders",
            "Shards of orders", "Due in the coming windows", "Compression of orders"} <= set(names)  # fmt: skip
    for plot in found["plots"]:
        assert min(plot["box"]) > 10, plot["name"]
        assert plot["marks"], plot["name"]
        assert all(width + height > 0.2 for width, height in plot["marks"]), plot["name"]
        assert max(height for _, height in plot["marks"]) > 1, plot["name"]
        assert all(colours != "nonenone" for colours in plot["fills"]), plot["name"]
        assert all(left >= -1 and right <= width + 1 for _, _, left, right in plot["texts"]), plot["name"]
        for (top, _, right), (below, left, _) in itertools.pairwise(sorted(plot["labels"])):
            assert top != below or right < left, plot["name"]


def test_the_page_can_be_looked_at_in_light_and_dark(page: Page, tmp_path: Path) -> None:
    written = tmp_path / "report.html"
    written.write_text(page.html, encoding="utf-8")
    pictures = []
    for name, scheme in (("light", 1), ("dark", 0)):
        picture = tmp_path / f"{name}.png"
        words = (
            f"--blink-settings=preferredColorScheme={scheme}",
            "--window-size=1280,2000",
            f"--screenshot={picture}",
        )
        assert complaints(browse(tmp_path, written.as_uri(), *words)) == []
        pictures.append(picture.read_bytes())
    for drawn in pictures:
        assert drawn[:4] == b"\x89PNG"
        assert struct.unpack(">II", drawn[16:24]) == (1280, 2000)
        assert len(drawn) > 50_000  # an empty page is some 10 kB
    assert pictures[0] != pictures[1]
