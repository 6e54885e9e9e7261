"""A token of a receiver is in no file of the checkpoint directory, however the program gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streaming.program.restarts import Runs
from tidemill.errors import NotRecoverableError
from tidemill.receivers import EnvironmentSecret, FileSecret, HttpReceiver
from tidemill.receivers.secret_values import Secret
from tidemill.streaming import StreamingContext
from tidemill.testing import BatchDriver

TOKEN = "s3cret-of-the-events"


def has_token(directory: Path) -> list[str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [path.name for path in files if TOKEN.encode() in path.read_bytes()]


def receive_with(runs: Runs, token: str | Secret) -> StreamingContext:
    def build(ssc: StreamingContext) -> None:
        ssc.receiverStream(HttpReceiver(token=token)).foreachRDD(lambda rdd: rdd.count())

    return runs.context(build)


def test_a_token_in_the_program_is_refused_before_anything_is_written(runs: Runs) -> None:
    ssc = receive_with(runs, TOKEN)
    with pytest.raises(NotRecoverableError, match="EnvironmentSecret") as caught:
        ssc.start()
    assert TOKEN not in str(caught.value)
    assert has_token(runs.checkpoint) == []


@pytest.mark.parametrize("kind", ["environment", "file"])
def test_a_token_that_is_named_is_written_nowhere(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    monkeypatch.setenv("EVENTS_TOKEN", TOKEN)
    (tmp_path / "token").write_text(TOKEN)
    secrets: dict[str, Secret] = {
        "environment": EnvironmentSecret("EVENTS_TOKEN"),
        "file": FileSecret(str(tmp_path / "token")),
    }
    ssc = receive_with(runs, secrets[kind])
    ssc.start()
    BatchDriver(ssc, runs.clock).run()
    ssc.stop(stopSparkContext=False)
    assert (runs.checkpoint / "program").exists()
    assert has_token(runs.checkpoint) == []
