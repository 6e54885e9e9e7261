from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import DEADLINE_S
from tidemill.cli import run
from tidemill.cli.main import main
from tidemill.cli.run import Restart, RestartPolicy, StopRequest, supervise
from tidemill.testing import ManualClock

COMMAND = [sys.executable, "-m", "tidemill.cli.main", "run"]

STARTS = """
import os, signal, sys
with open(__file__ + ".starts", "a") as file:
    file.write("x")
start = os.path.getsize(__file__ + ".starts")
"""
"""The beginning of a program that knows how often it was started."""

COUNTS_SIGNALS = """
import os, signal, sys
heard = []
def hear(number, frame):
    heard.append(signal.Signals(number).name)
    print(*heard, flush=True)
    if len(heard) == {enough}:
        sys.exit(7)
signal.signal(signal.SIGINT, hear)
signal.signal(signal.SIGTERM, hear)
print("ready", flush=True)
while True:
    signal.pause()
"""


# The policy


@pytest.mark.parametrize(
    ("policy", "restarts", "ran_ms", "expected"),
    [
        (RestartPolicy(), 0, 0, Restart(1, 1_000)),
        (RestartPolicy(), 1, 0, Restart(2, 2_000)),
        (RestartPolicy(), 5, 0, Restart(6, 32_000)),
        (RestartPolicy(), 6, 0, Restart(7, 60_000)),
        (RestartPolicy(), 9, 300_000, Restart(10, 60_000)),
        (RestartPolicy(), 10, 300_000, None),
        (RestartPolicy(), 10, 300_001, Restart(1, 1_000)),
        (RestartPolicy(max_restarts=0), 0, 0, None),
        (RestartPolicy(max_restarts=0), 0, 300_001, None),
        (RestartPolicy(backoff_ms=0), 9, 0, Restart(10, 0)),
        (RestartPolicy(backoff_ms=90_000), 0, 0, Restart(1, 60_000)),
        (RestartPolicy(max_backoff_ms=1_500), 1, 0, Restart(2, 1_500)),
        (RestartPolicy(reset_after_ms=10), 3, 10, Restart(4, 8_000)),
        (RestartPolicy(reset_after_ms=10), 3, 11, Restart(1, 1_000)),
        (RestartPolicy(max_restarts=10**6), 10**5, 0, Restart(10**5 + 1, 60_000)),
    ],
)
def test_policy(
    policy: RestartPolicy, restarts: int, ran_ms: int, expected: Restart | None
) -> None:
    assert policy.after(restarts, ran_ms) == expected


# The loop, on a clock that a script moves


class Script:
    """Fake starts, each with (how long it runs, how it ends), and a record of the waits between them."""

    def __init__(self, *runs: tuple[int, int | OSError], stop_in_wait: int | None = None) -> None:
        self.clock = ManualClock()
        self.waits: list[int] = []
        self._runs = iter(runs)
        self._stop_in_wait = stop_in_wait

    def start(self) -> Any:
        ran_ms, end = next(self._runs)
        if isinstance(end, OSError):
            raise end
        self._ran_ms, self._returncode = ran_ms, end
        return self

    def next(self) -> None:
        self.clock.advance(self._ran_ms)

    def returncode(self) -> int:
        return self._returncode

    def failure(self) -> str:
        return ""

    def wait_till(self, target_ms: int, clock: ManualClock) -> StopRequest | None:
        self.waits.append(target_ms - clock.now_ms())
        if len(self.waits) == self._stop_in_wait:
            return StopRequest(signal.SIGTERM)
        clock.set_to(target_ms)
        return None

    def supervise(self, policy: RestartPolicy | None) -> int:
        signals: Any = self
        exit_code = supervise("app.py", self.start, signals, policy, self.clock)
        assert next(self._runs, None) is None  # nothing of the script is left
        return exit_code


def test_the_backoff_doubles_up_to_its_limit_and_the_last_exit_code_is_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = Script((50, 1), (50, 1), (50, 1), (50, 1), (50, -9))
    policy = RestartPolicy(backoff_ms=500, max_backoff_ms=1_500, max_restarts=4)
    assert script.supervise(policy) == 137
    assert script.waits == [500, 1_000, 1_500, 1_500]
    assert capsys.readouterr().err.splitlines() == [
        "tidemill: app.py ended with exit code 1; restart 1 of 4 in 0.5 s",
        "tidemill: app.py ended with exit code 1; restart 2 of 4 in 1 s",
        "tidemill: app.py ended with exit code 1; restart 3 of 4 in 1.5 s",
        "tidemill: app.py ended with exit code 1; restart 4 of 4 in 1.5 s",
        "tidemill: app.py was killed by SIGKILL after 4 restarts in a row; giving up",
    ]


def test_a_healthy_run_starts_count_and_backoff_anew() -> None:
    script = Script((50, 1), (50, 1), (300_001, 1), (50, 1), (300_000, 1))
    assert script.supervise(RestartPolicy(max_restarts=2)) == 1
    assert script.waits == [1_000, 2_000, 1_000, 2_000]


def test_the_time_of_the_backoff_is_no_time_of_the_run() -> None:
    script = Script(*[(50, 1)] * 3)
    assert (
        script.supervise(RestartPolicy(backoff_ms=60_000, max_restarts=2, reset_after_ms=50)) == 1
    )


def test_exit_code_0_is_the_end() -> None:
    script = Script((50, 1), (50, 0))
    assert script.supervise(RestartPolicy()) == 0
    assert script.waits == [1_000]


def test_a_signal_during_backoff_is_the_end() -> None:
    script = Script((50, 1), (50, 1), stop_in_wait=2)
    assert script.supervise(RestartPolicy()) == 143


@pytest.mark.parametrize(
    ("policy", "exit_code", "waits"), [(None, 126, []), (RestartPolicy(), 0, [1_000])]
)
def test_no_memory_for_a_process(
    policy: RestartPolicy | None,
    exit_code: int,
    waits: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs: list[Any] = [(0, OSError(errno.ENOMEM, "Cannot allocate memory")), (50, 0)]
    script = Script(*(runs if policy else runs[:1]))
    assert script.supervise(policy) == exit_code
    assert script.waits == waits
    said = capsys.readouterr().err
    assert "tidemill: app.py cannot be started: Cannot allocate memory\n" in said


@pytest.mark.parametrize(
    ("returncode", "expected"),
    [
        (3, "ended with exit code 3"),
        (-11, "was killed by SIGSEGV"),
        (-40, "was killed by signal 40"),
    ],
)
def test_how_it_ended(returncode: int, expected: str) -> None:
    assert run.ending(returncode) == expected


# Real processes


class Running:
    """``tidemill run`` as a process, without a terminal; its output line by line."""

    def __init__(self, *arguments: str | Path, **options: Any) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options},
            start_new_session=True,
        )
        self._output = self.process.stdout.fileno() if self.process.stdout else -1
        self._read = b""

    def line(self) -> str:
        while b"\n" not in self._read:
            ready, _, _ = select.select([self._output], [], [], DEADLINE_S)
            assert ready, "nothing came within the deadline"
            piece = os.read(self._output, 4096)
            assert piece, f"the output ended: {self._read!r}"
            self._read += piece
        line, self._read = self._read.split(b"\n", 1)
        return line.decode().rstrip("\r")

    def exit_code(self) -> int:
        return self.process.wait(DEADLINE_S)

    def on_terminal(self, terminal: int) -> Running:
        self._output = terminal
        return self


@pytest.fixture
def running() -> Iterator[Callable[..., Running]]:
    """Starts ``tidemill run``, and kills all its processes at the end of the test."""
    started: list[Running] = []

    def start(*arguments: str | Path, **options: Any) -> Running:
        started.append(Running(*arguments, **options))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()  # the kernel tells the child
        each.process.wait(DEADLINE_S)
        if each.process.stdout:
            each.process.stdout.close()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "app.py"
        path.write_text(text)
        return path

    return write


def done(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        **options,
    )


def starts(program: Path) -> int:
    return program.with_name("app.py.starts").stat().st_size


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143),
        ("raise KeyboardInterrupt", 130),
    ],
)
def test_unsupervised_the_exit_code_is_the_programs(
    write: Callable[[str], Path], end: str, exit_code: int
) -> None:
    program = write(STARTS + end)
    result = done(program)
    assert result.returncode == exit_code
    assert "tidemill:" not in result.stderr
    assert starts(program) == 1


def test_everything_after_the_program_belongs_to_it(write: Callable[[str], Path]) -> None:
    program = write("import sys; print(*sys.argv[1:], sys.stdin.read(), sys.executable)")
    arguments = ["--version", "-h", "--max-restarts", "x", "--supervise", "--", "-", "a b"]
    result = done("--supervise", program, *arguments, input="from stdin")
    assert result.stdout.strip() == " ".join([*arguments, "from stdin", sys.executable])
    assert (result.returncode, result.stderr) == (0, "")


def test_a_program_finds_the_modules_next_to_it(tmp_path: Path, write: Callable[..., Path]) -> None:
    (tmp_path / "neighbour.py").write_text("word = 'hello'")
    assert done(write("import neighbour; print(neighbour.word)")).stdout == "hello\n"


def test_supervised_until_it_ends_well(write: Callable[[str], Path]) -> None:
    program = write(
        STARTS
        + "if start == 1: sys.exit(3)\n"
        + "if start == 2: os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    result = done("--supervise", "--backoff", "1ms", program)
    assert result.returncode == 0
    assert result.stderr.splitlines() == [
        f"tidemill: {program} ended with exit code 3; restart 1 of 10 in 0.001 s",
        f"tidemill: {program} was killed by SIGSEGV; restart 2 of 10 in 0.002 s",
    ]
    assert starts(program) == 3


def test_supervised_until_the_limit(write: Callable[[str], Path]) -> None:
    program = write(STARTS + "sys.exit(10 + start)")
    result = done("--supervise", "--backoff=0", "--max-restarts=2", program)
    assert result.returncode == 13
    assert result.stderr.splitlines()[1:] == [
        f"tidemill: {program} ended with exit code 12; restart 2 of 2 in 0 s",
        f"tidemill: {program} ended with exit code 13 after 2 restarts in a row; giving up",
    ]
    assert starts(program) == 3


def test_supervised_longer_than_the_limit_when_each_run_was_healthy(
    write: Callable[[str], Path],
) -> None:
    program = write(STARTS + "sys.exit(start < 4)")
    result = done("--supervise", "--backoff=1ms", "--max-restarts=1", "--reset-after=1ms", program)
    assert result.returncode == 0
    assert result.stderr.count("; restart 1 of 1 in 0.001 s\n") == 3


@pytest.mark.parametrize("options", [[], ["--supervise"]])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_handed_on_and_its_answer_awaited(
    write: Callable[[str], Path],
    running: Callable[..., Running],
    options: list[str],
    number: signal.Signals,
) -> None:
    supervisor = running(*options, write(COUNTS_SIGNALS.format(enough=1)))
    assert supervisor.line() == "ready"
    supervisor.process.send_signal(number)
    assert supervisor.line() == number.name
    assert supervisor.exit_code() == 7  # and no restart, though it is not 0


def test_a_second_signal_is_handed_on_as_well(
    write: Callable[[str], Path], running: Callable[..., Running]
) -> None:
    supervisor = running("--supervise", write(COUNTS_SIGNALS.format(enough=2)))
    assert supervisor.line() == "ready"
    supervisor.process.send_signal(signal.SIGTERM)
    assert supervisor.line() == "SIGTERM"
    supervisor.process.send_signal(signal.SIGTERM)
    assert supervisor.line() == "SIGTERM SIGTERM"
    assert supervisor.exit_code() == 7


def test_a_signal_to_the_whole_group_reaches_the_program_once(
    write: Callable[[str], Path], running: Callable[..., Running]
) -> None:
    supervisor = running("--supervise", write(COUNTS_SIGNALS.format(enough=2)))
    assert supervisor.line() == "ready"
    os.killpg(supervisor.process.pid, signal.SIGTERM)
    assert supervisor.line() == "SIGTERM"
    os.killpg(supervisor.process.pid, signal.SIGINT)
    assert supervisor.line() == "SIGTERM SIGINT"
    assert supervisor.exit_code() == 7


def test_without_a_terminal_a_program_has_its_own_process_group(
    write: Callable[[str], Path], running: Callable[..., Running]
) -> None:
    """The test above cannot always see this: two signals at nearly the same time become one."""
    supervisor = running(write("import os; print(os.getpgrp() == os.getpid())"))
    assert supervisor.line() == "True"


def test_ctrl_c_is_handed_on_to_a_program_that_was_started_in_the_background(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``tidemill run app.py &`` and later ``fg``: then the terminal reaches only us."""
    monkeypatch.setattr(run, "in_foreground", lambda: False)
    child = run.Child(["sleep", str(DEADLINE_S)], lambda: None)
    child.forward(StopRequest(signal.SIGINT, from_terminal=True))
    assert child._process.wait() == -signal.SIGINT  # 0 if it slept to its end


def test_a_program_that_dies_of_the_signal_is_not_restarted(
    write: Callable[[str], Path], running: Callable[..., Running]
) -> None:
    program = write(STARTS + "print('ready', flush=True)\nsignal.pause()")
    supervisor = running("--supervise", program)
    assert supervisor.line() == "ready"
    supervisor.process.send_signal(signal.SIGTERM)
    assert supervisor.exit_code() == 143
    assert starts(program) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_a_real_backoff(
    write: Callable[[str], Path], running: Callable[..., Running], number: signal.Signals
) -> None:
    program = write(STARTS + "sys.exit(1)")
    supervisor = running("--supervise", "--backoff=10min", "--max-backoff=10min", program)
    assert supervisor.line().endswith("restart 1 of 10 in 600 s")
    supervisor.process.send_signal(number)
    assert supervisor.exit_code() == 128 + number
    assert starts(program) == 1


def test_an_ignored_signal_stays_ignored(
    write: Callable[[str], Path], running: Callable[..., Running]
) -> None:
    """So it is for the background jobs of a shell script."""
    program = write(
        "import signal; print(signal.getsignal(signal.SIGINT).name, flush=True); signal.pause()"
    )
    supervisor = running(program, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert supervisor.line() == "SIG_IGN"
    supervisor.process.send_signal(signal.SIGINT)
    supervisor.process.send_signal(signal.SIGTERM)
    assert supervisor.exit_code() == 143


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child")
def test_a_program_does_not_outlive_a_supervisor_that_was_killed(
    write: Callable[[str], Path], running: Callable[..., Running]
) -> None:
    supervisor = running("--supervise", write(COUNTS_SIGNALS.format(enough=1)))
    assert supervisor.line() == "ready"
    supervisor.process.kill()
    assert supervisor.line() == "SIGTERM"


@pytest.fixture
def terminal(running: Callable[..., Running]) -> Iterator[Callable[..., tuple[Running, int]]]:
    """Starts ``tidemill run`` in the foreground of a new terminal."""
    ours, theirs = pty.openpty()

    def start(*arguments: str | Path) -> tuple[Running, int]:
        supervisor = running(
            *arguments,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        return supervisor.on_terminal(ours), ours

    yield start
    os.close(theirs)
    os.close(ours)


def test_ctrl_c_reaches_the_program_once_and_each_time(
    write: Callable[[str], Path], terminal: Callable[..., tuple[Running, int]]
) -> None:
    supervisor, keyboard = terminal("--supervise", write(COUNTS_SIGNALS.format(enough=4)))
    assert supervisor.line() == "ready"
    os.write(keyboard, b"\x03")
    assert supervisor.line() == "^CSIGINT"
    # Signals of a process are handed on, in the order they came: a second SIGINT would show here.
    supervisor.process.send_signal(signal.SIGTERM)
    assert supervisor.line() == "SIGINT SIGTERM"
    supervisor.process.send_signal(signal.SIGINT)
    assert supervisor.line() == "SIGINT SIGTERM SIGINT"
    os.write(keyboard, b"\x03")
    assert supervisor.line() == "^CSIGINT SIGTERM SIGINT SIGINT"
    assert supervisor.exit_code() == 7


def test_ctrl_c_ends_a_program_that_does_not_care_for_it(
    write: Callable[[str], Path], terminal: Callable[..., tuple[Running, int]]
) -> None:
    program = write(STARTS + "signal.signal(2, signal.SIG_DFL)\nprint('ready')\nsignal.pause()")
    supervisor, keyboard = terminal("--supervise", program)
    assert supervisor.line() == "ready"
    os.write(keyboard, b"\x03")
    assert supervisor.exit_code() == 130
    assert starts(program) == 1


def test_a_program_in_a_terminal_can_read_from_it(
    write: Callable[[str], Path], terminal: Callable[..., tuple[Running, int]]
) -> None:
    supervisor, keyboard = terminal(write("print('hello', input('name? '))"))
    os.write(keyboard, b"ann\n")
    assert supervisor.line().endswith("ann")
    assert supervisor.line().endswith("hello ann")
    assert supervisor.exit_code() == 0


# Refusals: one sentence, no traceback


def test_a_program_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--supervise", str(tmp_path / "gone.py"), "--x"]) == 2
    assert capsys.readouterr().err == f"tidemill: there is no program {tmp_path}/gone.py here.\n"


def test_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said == f"tidemill: {tmp_path} is not a file: name the Python file to run.\n"


def test_a_program_that_cannot_be_read(
    write: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Root may read everything, so permissions alone would not make the file unreadable."""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert main(["run", str(write("pass"))]) == 2
    said = capsys.readouterr().err
    assert "cannot be read: look at its permissions." in said
    assert said.count("\n") == 1


def test_options_of_the_supervision_need_it(
    write: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--max-restarts", "3", str(write("pass"))]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tidemill: without --supervise nothing is restarted")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "finding"),
    [
        (["--backoff", "soon"], "'soon': expected a time such as 500ms, 60s or 2min"),
        (["--max-restarts=-1"], "'-1': expected a whole number"),
        ([], "the following arguments are required: program"),
    ],
)
def test_options_that_cannot_be_read(
    options: list[str], finding: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["run", *options])
    assert refused.value.code == 2
    assert finding in capsys.readouterr().err


def test_a_program_whose_query_failed_is_no_success(write: Callable[[str], Path]) -> None:
    program = write(
        """
from tidemill.failures.failed_streams import note_failure
note_failure("the query 'prices' failed")
note_failure("The batch of 12:00:00 failed.")
"""
    )
    ended = done(program)
    assert ended.returncode == 1
    assert ended.stderr == (
        f"tidemill: {program} ended with exit code 0, but the query 'prices' failed, and 1 more\n"
    )


def test_a_program_whose_query_failed_is_started_again(write: Callable[[str], Path]) -> None:
    program = write(
        STARTS
        + """
from tidemill.failures.failed_streams import note_failure
if start == 1:
    note_failure("the query 'prices' failed")
"""
    )
    ended = done("--supervise", "--backoff", "1ms", program)
    assert (ended.returncode, starts(program)) == (0, 2)
    assert "ended with exit code 0, but the query 'prices' failed" in ended.stderr


def test_its_own_exit_code_comes_first(write: Callable[[str], Path]) -> None:
    program = write(
        """
import sys
from tidemill.failures.failed_streams import note_failure
note_failure("the query 'prices' failed")
sys.exit(7)
"""
    )
    ended = done(program)
    assert (ended.returncode, ended.stderr) == (7, "")
