"""The models that validate what comes in (pydantic, at the edge only) and the views that go out.

`fields` the rules of single fields · `producer`, `worker`, `operator` the request bodies · `times` instants as text ·
`task` the task's view.
"""
