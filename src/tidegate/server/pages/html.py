"""HTML pages in which no text can become markup.

`text` is the only way to make markup, and escapes every value that it fills in. A page has an inline style
and nothing else: the policy in its headers names the digest of that style and allows no script, no frame and
no other site.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import Any, NewType

from starlette.responses import HTMLResponse, Response

Markup = NewType("Markup", str)

STYLE = """
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 46rem; margin: 0 auto; padding: 1rem;
  color: #1b2733; background: #fbfcfd; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: .5rem 0; }
h2 { font-size: 1.15rem; margin: 1.5rem 0 .5rem; }
a { color: #005a9c; }
pre { padding: .75rem; background: #e9eef3; overflow-x: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid #c5d0da; }
th[scope=row] { font-weight: 600; }
td { white-space: nowrap; font-variant-numeric: tabular-nums; }
button { font: inherit; min-height: 2.75rem; padding: .5rem 1.25rem; border: 0; border-radius: .3rem;
  color: #fff; background: #005a9c; cursor: pointer; }
:focus-visible { outline: 3px solid #d06a00; outline-offset: 2px; }
@media (prefers-color-scheme: dark) {
  body { color: #e4ebf1; background: #11181f; }
  a { color: #7cc0ff; }
  pre { background: #1e2933; }
  th, td { border-color: #3a4855; }
  button { color: #0b1117; background: #7cc0ff; }
}
"""
_STYLE_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode("ascii")
PAGE_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_DIGEST}'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    # No other site learns an address of this server. With 'no-referrer' a browser would send 'Origin: null'
    # with this server's own forms, and they could not be distinguished from those of another site.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def text(markup: str, *values: Any) -> Markup:
    """Return markup with values in its braces, each escaped."""
    return Markup(markup.format(*(escape(str(value)) for value in values)))


def join(*parts: Markup) -> Markup:
    """Return pieces of markup, joined by line ends."""
    return Markup("\n".join(parts))


def page_answer(title: str, body: Markup, status: int = 200) -> Response:
    """Return a whole page."""
    content = (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>"
    )
    return HTMLResponse(content, status, PAGE_HEADERS)
