"""A task type's contract, shared by who submits and who handles: its name, its version, the types of input and output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from interlock.errors import NotJson, NotValid
from interlock.handler import check_type
from interlock.shapes import check_kind, is_model, read_as, write
from interlock.submission import Submission, SubmitOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True)
class TaskContract(Generic[In, Out]):
    """What `interlock.task` makes. Called with an input and the options of `submit`, it gives a Submission."""

    type: str
    schema_version: int
    input: Any = field(default=None, repr=False)
    output: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_type(self.type, self.schema_version)
        for name, kind in (("input", self.input), ("output", self.output)):
            if kind is not None:
                check_kind(kind, name)

    def __call__(self, input: In, **options: Unpack[SubmitOptions]) -> Submission:
        """The task to be submitted. Raises NotValid for an input that the contract refuses."""
        return Submission(self.type, self.schema_version, self.write_input(input), contract=self, **options)

    def write_input(self, value: In) -> Any:
        """The input for the wire. Raises NotValid."""
        return write_as(self.input, value, "the input")

    def read_input(self, value: Any) -> In:
        """The input as its handler gets it. Raises NotValid."""
        return cast("In", value if self.input is None else read_as(self.input, value))

    def write_output(self, value: Out) -> Any:
        """The result for the wire. Raises NotValid."""
        return write_as(self.output, value, "the result")

    def read_output(self, value: Any) -> Out:
        """The result as its caller gets it. Raises NotValid."""
        return cast("Out", value if self.output is None else read_as(self.output, value))

    def schemas(self) -> dict[str, Any]:
        """The JSON schemas of pydantic models, by their names in a registration."""
        kinds: Mapping[str, tuple[Any, str]] = {
            "inputSchema": (self.input, "validation"),
            "resultSchema": (self.output, "serialization"),
        }
        return {name: kind.model_json_schema(mode=mode) for name, (kind, mode) in kinds.items() if is_model(kind)}


@overload
def task(type: str, schema_version: int = 1, *, input: type[In], output: type[Out]) -> TaskContract[In, Out]: ...
@overload
def task(type: str, schema_version: int = 1, *, input: type[In]) -> TaskContract[In, Any]: ...
@overload
def task(type: str, schema_version: int = 1, *, output: type[Out]) -> TaskContract[Any, Out]: ...
@overload
def task(type: str, schema_version: int = 1) -> TaskContract[Any, Any]: ...
def task(type: str, schema_version: int = 1, *, input: Any = None, output: Any = None) -> TaskContract[Any, Any]:
    """A contract for `submit`, `submit_many` and `worker.handle`.

    `input` and `output` are pydantic models, dataclasses, or lists, dicts and unions of them; absent: any JSON value.
    Raises ValueError for what is no type or version, TypeError for a class that values cannot be read as.
    """
    return TaskContract(type, schema_version, input, output)


def write_as(kind: Any, value: Any, name: str) -> Any:
    """A value for the wire; one that is not of the contract's type is read as it first, and so checked."""
    if kind is None:
        return value
    try:
        if not (isinstance(kind, type) and isinstance(value, kind)):
            value = read_as(kind, write(value))
        return write(value)
    except (NotValid, NotJson):
        raise
    except Exception as error:  # a serializer of the user's may raise anything
        raise NotValid(f"{name} cannot be written: {type(error).__name__}: {error}") from error


def make_submission(type: str | TaskContract[Any, Any], *given: Any, **options: Any) -> Submission:
    """The submission of `submit`'s arguments: (type, schema_version, input) or (contract, input)."""
    if isinstance(type, str):
        return Submission(type, *given, **options)
    if len(given) > 1 or "schema_version" in options:
        raise TypeError("a contract has its schema version: submit(contract, input, …)")
    return type(*given, **options)
