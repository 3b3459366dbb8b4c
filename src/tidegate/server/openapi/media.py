"""The answers that no struct describes: pages, files, metrics, and the OpenAPI document itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Media:
    """An answer that no struct describes: its media types, what it is, whether clients may cache it."""

    content_types: tuple[str, ...]
    description: str
    is_cached: bool = False
    json_type: str = "string"


PAGE = Media(("text/html",), "A page for people.")
API_PAGE = Media(("text/html",), "A page that runs this server's own script.", is_cached=True)
REDIRECT = Media((), "The browser is redirected to another page.")
METRICS = Media(("text/plain", "application/openmetrics-text"), "Metrics in Prometheus' formats.")
DESCRIPTION = Media(("application/json",), "OpenAPI 3.1.", is_cached=True, json_type="object")
FILE = Media(("text/javascript", "text/css"), "A file of the page.", is_cached=True)
