"""A list of the service, page after page: as a table for people, as one document for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.cli.output import Output

if TYPE_CHECKING:
    from interlock.client import Client

Limit = Annotated[int, typer.Option(metavar="N", min=1, help="Show at most so many.")]
All = Annotated[bool, typer.Option("--all", help="Show all of them.")]

PAGE = 200
"""The most items that the service gives at once."""


def read_pages(client: Client, path: str, params: Mapping[str, Any], limit: int | None) -> Iterator[dict[str, Any]]:
    """The answers of a list until `limit` items were given, or all (None)."""
    cursor = params.get("cursor")
    while limit is None or limit > 0:
        size = PAGE if limit is None else min(limit, PAGE)
        page = client.request("GET", path, params={**params, "limit": size, "cursor": cursor})
        yield page
        cursor = page.get("nextCursor")
        if not cursor:
            return
        if limit is not None:
            limit -= len(page["items"])


def show_list(
    out: Output,
    client: Client,
    path: str,
    limit: int | None,
    head: Sequence[str],
    row: Callable[[Mapping[str, Any]], Sequence[str]],
    params: Mapping[str, Any] | None = None,
) -> None:
    """Show a list; each page goes out as it comes, in the columns of the first."""
    items: list[Any] = []
    widths: list[int] | None = None
    cursor = None
    for page in read_pages(client, path, params or {}, limit):
        cursor = page.get("nextCursor")
        if out.json:
            items += page["items"]
        elif page["items"]:
            widths = out.table(head, [row(item) for item in page["items"]], widths=widths)
    if out.json:
        out.document({"items": items, "nextCursor": cursor})
    elif widths is None:
        out.notice("there are none")
    elif cursor:
        out.notice(f"there are more: --all, or a larger --limit{f', or --cursor {cursor}' if params is not None else ''}")
