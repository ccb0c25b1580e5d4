"""The pages for people: what they show to whom, that nothing in a name becomes markup, and how browsers show them."""

from __future__ import annotations

import html
import json
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from penstock.api.app import ENDPOINTS
from penstock.api.pages.frame import SCRIPT
from penstock.client.wire import PipelineReport, QueryReport
from penstock.config import CallersConfig
from penstock.errors import Refusal
from penstock.rest.page import SHEET
from tests.callers.parts import TOKEN, bearer, user, users_in
from tests.served import Served

ODD = "<script>alert(1)</script> \"onload='x'&"
#: A browser that asks nobody for anything and keeps nothing.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr",
)  # fmt: skip
#: Writes down what a page is in a frame without scripts: its text, its width, and whether anything but a table that
#: scrolls sticks out. A window of a browser without a screen is 500 pixels wide at least.
PROBE = """<!doctype html><body><pre id="seen"></pre>
<iframe sandbox="allow-same-origin" width="%d" srcdoc="%s"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument, width = frame.contentWindow.innerWidth;
  const boxes = what => [...page.querySelectorAll(what)].map(each => [each, each.getBoundingClientRect()]);
  const out = boxes("main *, header *, form *").filter(([each]) => !each.closest(".table"))
    .filter(([, box]) => box.right > width + 1);
  document.getElementById("seen").textContent = JSON.stringify({
    wide: page.documentElement.scrollWidth - width, width, out: out.map(([each]) => each.outerHTML.slice(0, 80)),
    tables: boxes(".table").map(([, box]) => box.height), text: page.body.innerText,
  });
};
</script>"""


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def browse(tmp_path: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("chromium")
    assert program, "chromium is missing: apt-get install chromium"
    command = [program, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *words, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def fill(served: Served) -> None:
    """Give a node something of everything that is shown."""
    for name in ("orders", ODD, "metrics.http.requests.by.region.and.status.code.of.every.service.in.the.house"):
        assert served.post("topics", {"name": name}).status == 201
        path = f"topics/{quote(name, safe='')}"
        assert served.post(f"{path}/subscriptions", {"name": name[:60]}).status == 201
        served.post(f"{path}/messages", raw=b"\n".join([b'{"body":"x"}'] * 9))
    served.lease("orders", "orders", max=4)
    query = QueryReport(name="q", state="running", batch=1, rows_per_s=12.5, lag_rows=7)
    failed = PipelineReport(
        name=ODD, pid=1, host="h", state="failed", started_ms=1, restarts=2, error=f"no space {ODD}", queries=[query]
    )
    served.do(lambda: served.node.pipelines.report(failed))


@pytest.fixture
def filled(served: Served) -> Served:
    fill(served)
    return served


def page(served: Served, path: str = "/") -> str:
    answer = served.get(path)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.content.decode()


def test_the_page_shows_health_topics_subscriptions_pipelines_and_where_to_go(filled: Served) -> None:
    shown = Elements(page(filled))
    text = " ".join(" ".join(shown.words).split())
    for words in ("Ready", "orders", ODD, "Lag", "Consumers", "failed", f"no space {ODD}", "NSQ HTTP"):
        assert words in text, words
    links = {attributes.get("href") for tag, attributes in shown.found if tag == "a"}
    assert {"/metrics", "/docs", "/api/v1/openapi.json", "/api/v1/topics/orders"} <= links
    for link in links:
        assert link is not None
        assert filled.get(link).status == 200, link


@pytest.mark.parametrize("path", ["/", "/docs", f"/?prefix={quote(ODD)}&after=%3Cb%3E"])
def test_nothing_in_a_name_becomes_markup_and_nothing_comes_from_elsewhere(filled: Served, path: str) -> None:
    for tag, attributes in Elements(page(filled, path)).found:
        assert not any(name.startswith("on") or name == "style" for name in attributes), (tag, attributes)
        if tag == "script":
            assert attributes == {"src": "/page.js", "defer": "defer"}
        for name in ("href", "src", "action"):
            assert re.match(r"[/#](?!/)", attributes.get(name) or "/"), (tag, attributes)
    assert "http" not in SHEET + SCRIPT
    assert "url(" not in SHEET


def test_a_browser_may_load_nothing_but_this_node(filled: Served) -> None:
    for path in ("/", "/docs", "/page.css", "/page.js"):
        headers = filled.get(path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy.pop("default-src") == policy.pop("base-uri") == policy.pop("frame-ancestors") == "'none'"
        assert set(policy.values()) == {"'self'"}
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_pages_are_shown_under_names_of_the_listener_only(served: Served) -> None:
    for path in ("/", "/docs"):
        assert served.ask("GET", path, headers={"Host": "rebound.example"}).status == 421


def test_whoever_must_show_who_it_is_sees_its_own_topics_and_nothing_of_the_node(tmp_path: Path) -> None:
    data = tmp_path / "data"
    users_in(data, [user("bob", ("consume", "orders*"), token=TOKEN)])
    with Served(data, callers=CallersConfig(anonymous="off", audit="off")) as served:
        for name in ("orders.eu", "salaries"):
            served.do(partial(served.node.create_topic, name))
        for path in ("/", "/docs", "/page.css", "/page.js"):
            answer = served.get(path)
            assert answer.status == 401
            assert "Basic" in answer.headers["www-authenticate"]
        answer = served.ask("GET", "/", headers=bearer(TOKEN))
        assert answer.status == 200
        text = answer.content.decode()
        assert "orders.eu" in text
        for hidden in ("salaries", "Pipelines", "Listeners", "memory", "connections"):
            assert hidden not in text


def test_a_node_that_is_not_ready_says_why(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Not ready" not in page(served)
    monkeypatch.setattr(served.node, "lost", lambda: ["directory 7 <b>belongs</b> to nobody"])
    shown = page(served)
    assert "Not ready" in shown
    assert "directory 7 &lt;b&gt;belongs&lt;/b&gt; to nobody" in shown


def test_many_topics_come_page_by_page_and_can_be_filtered(served: Served) -> None:
    for number in range(103):
        served.do(partial(served.node.create_topic, f"t{number:03}"))
    first = page(served)
    assert "Topics (100 of 103)" in first
    assert "t099" in first
    assert "t100" not in first
    following = next(
        attributes["href"] for tag, attributes in Elements(first).found if "after=" in (attributes.get("href") or "")
    )
    assert following is not None
    second = page(served, following)
    assert "t102" in second
    assert "t099" not in second
    assert "Topics (10)" in page(served, "/?prefix=t05")
    assert "No topic begins with &lt;x&gt;." in page(served, "/?prefix=%3Cx%3E")


def test_an_empty_node_says_what_to_do(served: Served) -> None:
    assert "The first publish makes one" in page(served)


def test_docs_tell_every_endpoint_and_every_type_they_link_to(served: Served) -> None:
    shown = Elements(page(served, "/docs"))
    text = " ".join(shown.words)
    for endpoint in ENDPOINTS:
        assert endpoint.path in text
        assert endpoint.summary in text
    ids = [attributes["id"] for _, attributes in shown.found if "id" in attributes]
    assert len(set(ids)) == len(ids)
    links = {attributes.get("href") or "" for tag, attributes in shown.found if tag == "a"}
    inside = {link[1:] for link in links if link.startswith("#")}
    assert len(inside) > 20
    assert inside <= set(ids)


def test_a_bug_in_a_page_is_an_answer(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[str]:
        raise Refusal("unavailable", "not now")

    monkeypatch.setattr(served.node, "damage", fail)
    assert served.get("/").status == 503


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("pages") / "data") as served:
        fill(served)
        yield served


@pytest.mark.parametrize("width", [1280, 420])
@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_real_browser_shows_the_page_whole_and_without_scripts_too(
    shop: Served, tmp_path: Path, path: str, width: int
) -> None:
    picture = tmp_path / "page.png"
    url = f"http://127.0.0.1:{shop.api.port}{path}"
    done = browse(tmp_path, url, f"--window-size={width},1500", f"--screenshot={picture}")
    assert complaints(done) == []
    drawn = picture.read_bytes()
    assert struct.unpack(">II", drawn[16:24]) == (width, 1500)
    assert len(drawn) > 20_000  # an empty page is some 5 kB
    # The policy of the page lets nobody measure it, so that is done to a copy, with all of it open.
    text = page(shop, path).replace("<details", "<details open")
    text = re.sub(r"<link[^>]*>", f"<style>{SHEET}</style>", text)
    copy = tmp_path / "copy.html"
    copy.write_text(PROBE % (width, html.escape(text)), encoding="utf-8")
    done = browse(tmp_path, copy.as_uri(), "--window-size=1400,1600", "--virtual-time-budget=10000", "--dump-dom")
    seen = re.search(r'<pre id="seen">(.+?)</pre>', done.stdout, re.DOTALL)
    assert seen is not None
    found = json.loads(html.unescape(seen[1]))
    assert (found["wide"], found["width"], found["out"]) == (0, width, [])
    assert found["tables"]
    assert min(found["tables"]) > 30
    told = ("Ready", ODD, "Listeners", "Without scripts the page stands still") if path == "/" else ("TopicInfo",)
    for words in told:
        assert words in found["text"]


def test_the_script_fetches_the_page_anew(shop: Served, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{shop.api.port}/"
    done = browse(tmp_path, url, "--virtual-time-budget=12000", "--dump-dom")
    assert complaints(done) == []
    assert "9 since the start" in done.stdout  # what the script says of a count it saw twice
    assert "alert(1)&lt;/script&gt;" in done.stdout
