from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.common.processes import ancestors_of, command_of, is_alive, parent_of, started_at


def test_a_child_is_known_by_its_parent_command_and_start_time() -> None:
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # the kernel shows no command for a moment before it begins
        assert is_alive(child.pid)
        assert parent_of(child.pid) == os.getpid()
        assert next(ancestors_of(child.pid))[0] == os.getpid()
        assert command_of(child.pid)[1:] == command[1:]
        assert started_at(child.pid) == started_at(child.pid) != started_at(1)
    assert not is_alive(child.pid)
    assert started_at(child.pid) is None
    assert list(ancestors_of(child.pid)) == []
    with pytest.raises(OSError, match="No such file"):
        parent_of(child.pid)


def test_a_process_name_may_have_blanks_and_brackets(tmp_path: Path) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "stat").write_text("42 (a) S 99 (b c) S 17 42 42 0 -1")
    assert parent_of(42, tmp_path) == 17
