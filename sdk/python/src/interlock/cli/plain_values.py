"""Values that need no conversion are taken as they are: the parser's library imports pydantic to convert any, a third of a start.

This reaches into one library's release: where its parameters are made otherwise, nothing is changed and all is converted.
"""

from __future__ import annotations

from typing import Any

SIMPLE = (str, int, bool)


class AsItIs:
    """Stands for the conversion of a parameter, which is made when a value first needs it."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value, converted if it is not of its type already. Raises as the library does."""
        several = param.multiple or param.nargs == -1
        kind, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        if value is None:
            return () if several else None
        # Bounds are checked by the conversion; a default is within them.
        bounded = info.min is not None or info.max is not None
        if not several and type(value) is kind and kind in SIMPLE and not (bounded and value != param.default):
            return value
        param._runtime_param = None  # noqa: SLF001
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def convert_late(command: Any) -> Any:
    """The command, whose parameters (the one for help too, which is made for each run) convert only what needs it."""
    make = command.get_params

    def get_params(ctx: Any) -> Any:
        parameters = make(ctx)
        for parameter in parameters:
            if getattr(parameter, "_runtime_param", ...) is None and hasattr(parameter, "get_runtime_param"):
                parameter._runtime_param = AsItIs()  # noqa: SLF001
        return parameters

    command.get_params = get_params
    return command
