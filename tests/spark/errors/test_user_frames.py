"""Tracebacks cut down to what their user can act on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.spark.errors.failures import MOST_LINES, headline, user_traceback
from tidemill.spark.errors.user_frames import LONGEST_LINE, short_traceback

HEADER = "Traceback (most recent call last):\n"
JOINT = "\nDuring handling of the above exception, another exception occurred:\n\n"
FILES = [
    "/home/me/app.py",
    "/home/me/lib.py",
    "/usr/lib/python3.11/json/decoder.py",
    "/venv/lib/python3.11/site-packages/pandas/core/frame.py",
    "/venv/lib/python3.11/site-packages/pyspark/worker.py",
    "/spark/python/lib/pyspark.zip/pyspark/serializers.py",
]
frames = st.builds(
    lambda file, line: (
        f'  File "{file}", line {line}, in f\n    return f({line})\n           ^^^^\n'
    ),
    st.sampled_from(FILES),
    st.integers(1, 99),
)
messages = st.lists(st.text("abc .:[]'", max_size=800), min_size=1, max_size=9).map(
    lambda lines: "ValueError: " + "\n".join(lines) + "\n"
)
blocks = st.builds(
    lambda frames, message: f"{HEADER}{''.join(frames)}{message}",
    st.lists(frames, max_size=12),
    messages,
)


@given(st.lists(blocks, min_size=1, max_size=5).map(JOINT.join), st.integers(8, 20))
def test_whatever_happens_it_is_short_and_the_users(text: str, most_lines: int) -> None:
    lines = short_traceback(text, most_lines).splitlines()
    assert len(lines) <= most_lines
    assert all(len(line) <= LONGEST_LINE for line in lines)
    assert not any("pyspark" in line or "^^^" in line for line in lines)
    if "/home/me/" in text and text.count(HEADER) == 1:
        assert any("/home/me/" in line for line in lines)


def test_the_last_frame_of_the_program_stays_among_frames_of_libraries() -> None:
    libraries = "".join(
        f'  File "/x/site-packages/p/{n}.py", line 1, in g\n    h()\n' for n in range(9)
    )
    text = f'{HEADER}  File "/home/me/app.py", line 7, in parse\n    load(x)\n{libraries}ValueError: x\n'
    assert (
        short_traceback(text, 9).splitlines()
        == [
            HEADER.rstrip(),
            '  File "/home/me/app.py", line 7, in parse',
            "    load(x)",
            '  File "/x/site-packages/p/8.py", line 1, in g',
            "    h()",
            "ValueError: x",
        ]
        or len(short_traceback(text, 9).splitlines()) <= 9
    )
    assert "/home/me/app.py" in short_traceback(text, 9)


def test_a_traceback_without_the_users_frames_is_its_message() -> None:
    frame = '  File "/x/site-packages/pyspark/worker.py", line 1, in g\n    h()\n'
    text = f"{HEADER}{frame}pyspark.errors.Bad: x\n"
    assert short_traceback(text, 9) == "Bad: x"


def fail_at(line: int) -> None:
    exec(compile("\n" * (line - 1) + "int('x')", "/home/me/app.py", "exec"))


def group_of(*errors: Exception) -> ExceptionGroup[Exception]:
    raised = []
    for number, error in enumerate(errors):
        try:
            fail_at(number + 1)
        except ValueError as failed:
            raised.append(failed if error is None else error)
    return ExceptionGroup("two of them", raised)


def test_a_group_of_errors_shows_its_message_and_one_of_its_errors() -> None:
    try:
        raise group_of(*[None] * 3)  # type: ignore[list-item]
    except ExceptionGroup as error:
        text = user_traceback(error)
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES
    assert lines[0] == HEADER.rstrip()
    assert "ExceptionGroup: two of them (3 sub-exceptions)" in lines
    assert "Exception of the group, number 3:" in lines
    assert '  File "/home/me/app.py", line 3, in <module>' in lines
    assert lines[-1] == headline(text) == "ValueError: invalid literal for int() with base 10: 'x'"
    assert not [line for line in lines if "|" in line or "+-" in line]


def test_errors_of_a_group_that_were_never_raised_and_groups_of_groups() -> None:
    try:
        raise group_of(KeyError("a | b"), group_of(OSError("inner")))
    except ExceptionGroup as error:
        lines = user_traceback(error).splitlines()
    assert [line for line in lines if line.startswith(("Exc", "Key", "OS"))] == [
        "ExceptionGroup: two of them (2 sub-exceptions)",
        "Exception of the group, number 1:",
        "KeyError: 'a | b'",
        "Exception of the group, number 2:",
        "ExceptionGroup: two of them (1 sub-exception)",
        "Exception of the group, number 1:",
        "OSError: inner",
    ]


def test_an_error_that_was_raised_nowhere_is_its_message() -> None:
    assert user_traceback(ValueError("x")) == "ValueError: x"


def test_an_endless_recursion_is_short() -> None:
    def down(n: int) -> int:
        return down(n + 1)

    with pytest.raises(RecursionError) as raised:
        down(0)
    lines = user_traceback(raised.value).splitlines()
    assert len(lines) <= MOST_LINES
    assert lines[-1].startswith("RecursionError")
