"""What people type, read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from interlock.cli.plain import show_lines, show_plainly, to_json
from interlock.cli.values import read_duration, read_instant, read_json, read_list, read_tags, read_type, splice


@pytest.mark.parametrize(
    "text", ['{"a": 1e2}', "1.10", "9007199254740993", "1" * 4300, '"\\u0000"', '"→ 😀"', "null", ' {"b":1,"a":2} ']
)
def test_json_passes_through_as_it_was_written(text: str) -> None:
    assert read_json(text, "--input") == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{name: Ada}", "shell"),
        ('{"a": 1} {"b": 2}', "line 1, column 10"),
        ('1,"type":"other/type"', "not JSON"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ("NaN", "NaN"),
        ("[-Infinity]", "-Infinity"),
        ("", "not JSON"),
        ("1" * 4301, "4300"),
        ("[" * 100_000, "too deeply"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_what_is_not_json_is_refused_before_anything_is_sent(text: str, said: str) -> None:
    with pytest.raises(typer.BadParameter, match=r".") as caught:
        read_json(text, "--input")
    assert said in str(caught.value)


def test_json_of_a_file_is_read_as_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "input.json"
    path.write_bytes('{"name": "Zoë"}\n'.encode())
    assert json.loads(read_json(f"@{path}", "--input")) == {"name": "Zoë"}
    path.write_bytes(b'\xef\xbb\xbf{"name": 1}')
    with pytest.raises(typer.BadParameter, match="byte order mark"):
        read_json(f"@{path}", "--input")
    path.write_bytes(b'"\xff"')
    with pytest.raises(typer.BadParameter, match="not UTF-8"):
        read_json(f"@{path}", "--input")
    with pytest.raises(typer.BadParameter, match="cannot be read"):
        read_json(f"@{tmp_path / 'absent'}", "--input")


def test_a_spliced_member_keeps_its_text() -> None:
    assert splice({"type": "a/b"}, "input", '{"x": 1e2}') == b'{"type":"a/b","input":{"x": 1e2}}'
    assert splice({}, "input", "1.0") == b'{"input":1.0}'
    assert splice({"a": 1}, "result", None) == b'{"a":1}'


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("250ms", 0.25), ("15m", 900), ("2h", 7200), ("7d", 604_800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert read_duration(text, "--delay") == seconds


@pytest.mark.parametrize("text", ["", "-1", "1y", "one", "1h30m", "inf", "nan", "1e3"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        read_duration(text, "--delay")


def test_an_instant_is_the_services_to_judge_unless_it_is_a_duration() -> None:
    assert read_instant("2026-01-31T12:00:00Z", "--run-at", past=False) == "2026-01-31T12:00:00Z"
    before, after = read_instant("1h", "--created-after", past=True), read_instant("1h", "--run-at", past=False)
    assert before is not None
    assert after is not None
    assert before < after
    with pytest.raises(typer.BadParameter, match=r"RFC 3339 .* or how long ago \(2h\)"):
        read_instant("yesterday", "--created-after", past=True)
    with pytest.raises(typer.BadParameter):
        read_instant("999999999d", "--created-after", past=True)


def test_types_tags_and_lists() -> None:
    assert read_type("a/b@2", None) == ("a/b", 2)
    assert read_type("a/b@2", 2) == ("a/b", 2)
    assert read_type("a", 1) == ("a", 1)  # for the service to judge
    for wrong in ("a/b@latest", "a/b@", "a/b@v1", "a/b@1.0"):
        with pytest.raises(typer.BadParameter, match=r"a version is a whole number, as in group/name@2"):
            read_type(wrong, None)
    with pytest.raises(typer.BadParameter, match="version 2"):
        read_type("a/b@2", 1)
    assert read_tags(["order=17", "note=a=b", "empty="]) == {"order": "17", "note": "a=b", "empty": ""}
    for wrong in (["order"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(typer.BadParameter):
            read_tags(wrong)
    assert read_list(["a/*, b/*", "c/d"]) == ["a/*", "b/*", "c/d"]
    assert read_list([]) is None


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[31mred\x1b[0m",
        "\x9b31m",
        "\u202egnp.exe",
        "\u2066x\u2069",
        "a\x00b",
        "a\rb",
        "bell\x07",
        "\u200b",
        "\ufeff",
        "\udc80",
        "\U000e0041",
    ],
)
def test_b81_text_of_others_is_shown_literally(text: str) -> None:
    for shown in (show_plainly(text), *show_lines(text), to_json(text), to_json({text: [text]}, indent=2)):
        assert not [letter for letter in shown if letter in text and not letter.isprintable()], ascii(shown)
    assert json.loads(to_json({text: text})) == {text: text}


def test_ordinary_text_is_shown_as_it_is() -> None:
    text = "→ 😀 \u202f Zoë 日本 \\x1b"
    assert show_plainly(text) == text
    assert to_json(text) == f'"{text[:-4]}\\\\x1b"'
    assert json.loads(to_json([2**4000, 9007199254740993, 0.1])) == [2**4000, 9007199254740993, 0.1]
    assert to_json("→", ascii_only=True) == '"\\u2192"'
