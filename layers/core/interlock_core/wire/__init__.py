"""What comes in, validated at the edge, and how what goes out is described.

`rules` of single fields, which `fields` gives to pydantic and `structs` to msgspec · request bodies: `claim` and `reports`
of a worker as structs; `producer`, `operator`, `schedules`, `registration`, `children`, `streams` as models; `documented`
as the OpenAPI document shows them · `queries` and `cursors` · `…answers` · `times` instants as text · `sizes`.
"""

from __future__ import annotations

from typing import Any, Protocol, Self


class Readable(Protocol):
    """What reads a body: a model of pydantic's (`fields`) or a struct of msgspec's (`structs`)."""

    @classmethod
    def read(cls, value: Any, pointer: str = "") -> Self:
        """The body that `value`, which stands at `pointer`, is. Raises InvalidRequest, which names every broken field."""
        ...
