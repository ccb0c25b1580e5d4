"""What all pages share: their frame, their look, and what a browser may do with them.

Invariant: a page loads nothing from elsewhere, runs no script but the file of this node, and is shown in no frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.markup import Child, Markup, tag
from penstock.rest.reply import Reply

HTML = "text/html; charset=utf-8"

#: A page may ask this node, and nobody else, for its look, its script and its own new version.
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

SHEET = """\
:root{color-scheme:light dark;--page:#f6f6f3;--card:#fff;--ink:#1d1d1b;--soft:#5d5d58;--faint:#8a8a83;--line:#e4e4de;
--grid:#ecece7;--accent:#1f66bd;--good:#0e7a4f;--warn:#a85b00;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--page:#161615;--card:#1f1f1d;--ink:#ecece8;--soft:#b2b2ab;--faint:#83837c;
--line:#33332f;--grid:#2b2b28;--accent:#6aa5ec;--good:#4cc38f;--warn:#e5a13c;--bad:#f08079}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.wrap{max-width:1180px;margin:0 auto;padding:0 20px 40px}
header{display:flex;flex-wrap:wrap;gap:4px 18px;align-items:baseline;padding:22px 0 10px}
h1{font-size:24px;margin:0}h1 a{color:inherit}
h2{font-size:18px;margin:30px 0 8px}
header nav{margin-left:auto;display:flex;flex-wrap:wrap;gap:4px 16px}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
.soft{color:var(--soft)}
.good{color:var(--good)}.warn{color:var(--warn);font-weight:600}.bad{color:var(--bad);font-weight:600}.less{color:var(--faint)}
.tiles{display:flex;flex-wrap:wrap;gap:10px;margin:10px 0}
.tile{flex:1 1 110px;min-width:max-content;
background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px 14px}
.tile b{display:block;white-space:nowrap;font-size:20px;font-weight:600;line-height:1.25;
font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}
.table{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:10px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:7px 12px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line);vertical-align:top}
tbody tr:last-child td{border-bottom:0}
th{font-weight:600;color:var(--soft);font-size:12.5px}
th.name,td.name{text-align:left}
td.name{max-width:360px;overflow:hidden;text-overflow:ellipsis}
td.text{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:220px}
.chip{border:1px solid;border-radius:6px;padding:0 5px;font-size:12px;margin-left:6px}
.none,.problems{background:var(--card);border:1px dashed var(--line);border-radius:10px;padding:12px 14px;
color:var(--soft)}
.problems{border:1px solid var(--bad);color:var(--ink);overflow-wrap:anywhere}
.problems ul{margin:4px 0 0;padding-left:20px}
code,pre{font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
form{display:flex;flex-wrap:wrap;gap:8px;margin:0 0 10px}
input,button{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);border-radius:8px;
padding:4px 10px;min-width:0}
button{cursor:pointer;color:var(--accent)}
.stale main{opacity:.55}
footer{margin-top:36px;color:var(--soft);font-size:13px}
details{background:var(--card);border:1px solid var(--line);border-radius:10px;margin:8px 0}
summary{cursor:pointer;padding:8px 14px;display:flex;flex-wrap:wrap;gap:2px 12px;align-items:baseline}
summary code{overflow-wrap:anywhere}
summary .soft{margin-left:auto;text-align:right}
details>div{scroll-margin-top:60px;padding:2px 14px 12px;border-top:1px solid var(--line)}
details h3{font-size:13px;color:var(--soft);margin:12px 0 4px}
.method{font-weight:700;min-width:66px;display:inline-block}
.get{color:var(--good)}.post,.put,.patch{color:var(--warn)}.delete{color:var(--bad)}
.index{display:flex;flex-wrap:wrap;gap:4px 14px;margin:6px 0}
@media (max-width:600px){.wrap{padding:0 12px 30px}header nav{margin-left:0}th,td{padding:6px 9px}
.tiles{display:grid;grid-template-columns:repeat(2,1fr)}td.name{max-width:190px}
summary .soft{margin-left:0;text-align:left;flex-basis:100%}}
"""


class Site(NamedTuple):
    """Where the pages of one listener are."""

    version: str
    #: What stands above every page: words and places, the first of them behind the name.
    links: Sequence[tuple[str, str]]
    sheet: str
    #: What a page that comes anew by itself runs.
    script: str = ""


def page(site: Site, title: str, *children: Child, tools: Child = None, alive: bool = False) -> Reply:
    """Return a page; with `alive` it comes anew by itself, all but its `tools`."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("link", rel="stylesheet", href=site.sheet),
        tag("script", src=site.script, defer="defer") if alive else None,
    )
    header = tag(
        "header",
        tag("h1", tag("a", "Penstock", href=site.links[0][1])),
        tag("span", site.version, class_="soft"),
        tag("nav", [tag("a", name, href=place) for name, place in site.links]),
    )
    body = tag("body", tag("div", header, tools, tag("main", children), class_="wrap"))
    text = Markup("<!doctype html>\n") + tag("html", head, body, lang="en")
    return Reply(text.encode(), HTML, headers=HEADERS)


def sheet() -> Reply:
    """Return how pages look."""
    return Reply(SHEET.encode(), "text/css; charset=utf-8", headers=HEADERS)


def table(heads: str, rows: list[Markup], names: int = 1) -> Markup:
    """Return a table; its heads are divided by |, the first ones and one that begins with < stand over text."""
    head = [
        tag("th", text.removeprefix("<"), class_="name" if at < names or text.startswith("<") else None)
        for at, text in enumerate(heads.split("|"))
    ]
    return tag("div", tag("table", tag("thead", tag("tr", head)), tag("tbody", rows)), class_="table")
