"""Every example runs from a command line and prints its result."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pyarrow.dataset
import pytest

from tests.examples_in_turn import parts
from tests.kafka.broker import KafkaBroker
from tests.receivers.connectors.kinesis.server import ENVIRONMENT, REGION, kinesis_server
from tests.sinks.kafka.reading import values_of
from tests.waiting import DEADLINE_S, wait_for

ROOT = Path(__file__).parents[1]


# Examples that end by themselves, and lines that they print.
PRINTED = {
    "transform_blacklist": ["2 ann", "3 ann", "5 kim"],
    "top3_hot_product": ["|   books|  atlas|     2|", "|   books|  comic|     2|"],
    "persist_word_count": ["to 3", "be 2"],
    "update_state_by_key": ["to 3", "be 2"],
    "structured_windows": [
        "|12:00|12:10|21.0|       3|",
        "|12:10|12:20|25.0|       2|",
        "1 reading was too late and was dropped",
    ],
    "structured_foreach": ["300 rows with a sum of 44850"],
    "structured_own_sink": ["ann 10.0", "bob 10.0", "cid 5.0", "2 batches, 0 files left behind"],
    "structured_own_source": ["|     ann| 10.0|", "|     ann| 12.5|", "|     cid|  7.0|"],
}


@pytest.fixture(scope="module")
def outputs() -> tuple[dict[str, str], dict[str, str]]:
    """What these examples have printed, and their errors."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.examples_in_turn", *PRINTED],
        cwd=ROOT,
        # They stop after seconds, and on a busy machine it takes longer to finish what has begun.
        env={
            **os.environ,
            "PYSPARK_SUBMIT_ARGS": "--conf spark.streaming.gracefulStopTimeout=300s pyspark-shell",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return parts(done.stdout), parts(done.stderr)


@pytest.mark.parametrize("name", PRINTED)
def test_example(name: str, outputs: tuple[dict[str, str], dict[str, str]]) -> None:
    printed, errors = outputs
    assert errors[name] == ""
    lines = printed[name].splitlines()
    assert [line for line in PRINTED[name] if line not in lines] == []


def test_a_receiver_of_ones_own() -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "examples/custom_receiver.py", "600"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        # A receiver may need a minute to start; until then batches are empty.
        measured = re.compile(r"\d+ measurements, [\d.]+ to [\d.]+")
        assert any(measured.fullmatch(line.rstrip()) for line in process.stdout)
        process.terminate()
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, "Traceback" in errors) == (143, False), errors
    finally:
        process.kill()
        process.wait()


def test_words_of_a_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_S)
        process = subprocess.Popen(
            [
                *(sys.executable, "-u", "examples/network_word_count.py", "127.0.0.1"),
                str(server.getsockname()[1]),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            connection, _ = server.accept()
            connection.sendall(b"to be or not\nto be\n")
            assert process.stdout is not None
            counts = (line.strip() for line in process.stdout if line.startswith("("))
            assert sorted(islice(counts, 4)) == [
                "('be', 2)",
                "('not', 1)",
                "('or', 1)",
                "('to', 2)",
            ]
            process.terminate()
            _, errors = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 143
            # A batch may have been running.
            assert re.sub(r"^tidemill: stopping: the batch of .*\n", "", errors) == ""
        finally:
            process.kill()
            process.wait()


def test_words_of_a_kinesis_stream() -> None:
    with kinesis_server() as server:
        server.create(2, "sentences")
        server.put([b"to be or not", b"to be"], stream="sentences")
        process = subprocess.Popen(
            [
                *(sys.executable, "-u", "examples/kinesis_word_count.py"),
                *("count", "sentences", server.url, REGION),
            ],
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT, "AWS_ENDPOINT_URL_DYNAMODB": server.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            # Each shard is a block, and a batch may come between the two.
            counts: Counter[str] = Counter()
            for line in process.stdout:
                if found := re.match(r"\('(\w+)', (\d+)\)", line):
                    counts[found[1]] += int(found[2])
                if counts.total() == 6:
                    break
            assert counts == {"to": 2, "be": 2, "or": 1, "not": 1}
            process.terminate()
            _, errors = process.communicate(timeout=DEADLINE_S)
            assert (process.returncode, "Traceback" in errors) == (143, False), errors
        finally:
            process.kill()
            process.wait()


def test_words_of_a_socket_as_a_query() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_S)
        process = subprocess.Popen(
            [
                *(sys.executable, "-u", "examples/structured_network_word_count.py", "127.0.0.1"),
                str(server.getsockname()[1]),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            connection, _ = server.accept()
            connection.sendall(b"to be or not\nto be\n")
            assert process.stdout is not None
            counts = (line.strip() for line in process.stdout if re.match(r"\|.* \d+\|", line))
            found = list(islice(counts, 4))
            assert found == ["|  be|    2|", "|  to|    2|", "| not|    1|", "|  or|    1|"]
            process.terminate()
            _, errors = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 143
            # A socket is for trying things out, and says so.
            said = errors.splitlines()[0]
            assert said.endswith("those of a batch that a crash interrupts are lost")
        finally:
            process.kill()
            process.wait()


def test_the_files_example_writes_every_row_once_through_a_kill(tmp_path: Path) -> None:
    incoming, clicks = tmp_path / "incoming", tmp_path / "clicks"
    incoming.mkdir()

    def run_until(batch: str) -> None:
        folders = (str(incoming), str(clicks), str(tmp_path / "checkpoint"))
        process = subprocess.Popen(
            [sys.executable, "examples/structured_files.py", *folders],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            manifest = clicks / "_spark_metadata" / batch
            wait_for(lambda: manifest.exists() or process.poll() is not None, batch, 300)
        finally:
            process.kill()
            _, errors = process.communicate()
        assert errors == ""

    (incoming / "1.json").write_text('{"user": "ann", "page": "/"}\nbroken\n')
    run_until("0")
    (incoming / "2.json").write_text('{"user": "bob", "page": "/"}\n')
    run_until("1")
    rows = pyarrow.dataset.dataset(clicks, partitioning="hive").to_table().to_pylist()
    assert sorted((row["user"] or "", row["valid"]) for row in rows) == [
        ("", "false"),
        ("ann", "true"),
        ("bob", "true"),
    ]


def test_the_kafka_example_writes_every_update_once_through_a_kill(
    tmp_path: Path, broker: KafkaBroker
) -> None:
    orders, counts = broker.create("example-orders"), broker.create("example-counts")
    seen: list[str] = []

    def run_until(*updates: str) -> None:
        arguments = broker.address, orders, counts, str(tmp_path / "checkpoint")
        process = subprocess.Popen(
            [sys.executable, "examples/structured_kafka.py", *arguments],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        seen.extend(updates)

        def is_there() -> bool:
            return process.poll() is not None or len(values_of(broker, counts)) >= len(seen)

        try:
            wait_for(is_there, str(updates), 300)
        finally:
            process.kill()
            _, errors = process.communicate()
        assert errors == ""
        assert sorted(values_of(broker, counts)) == sorted(seen)

    broker.send(orders, ["kite", "atlas", "kite"])
    run_until('{"product":"atlas","count":1}', '{"product":"kite","count":2}')
    broker.send(orders, ["kite"])
    run_until('{"product":"kite","count":3}')


def test_the_streaming_checkpoint_example_survives_a_kill(tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()

    def run_until(expected: str, new_file: str) -> None:
        command = ["examples/streaming_checkpoint.py", str(incoming), str(tmp_path / "checkpoint")]
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            process.stdout.readline()  # the stream runs: what comes now is new
            (tmp_path / "staged").write_text(new_file)
            (tmp_path / "staged").rename(incoming / new_file.replace(" ", "-"))
            assert any(line.split(" ", 1)[1:] == [f"{expected}\n"] for line in process.stdout)
        finally:
            process.kill()
            process.wait()

    run_until("a=2 b=1", "a b a")
    run_until("a=3 b=1 c=1", "a c")


@pytest.mark.parametrize("name", ["kafka_direct_word_count", "kafka_receiver_word_count"])
def test_words_of_a_topic(name: str, broker: KafkaBroker, tmp_path: Path) -> None:
    topic = broker.create(name)
    broker.send(topic, ["to be or not", "to be"])
    group = ["words"] if "receiver" in name else []
    arguments = [broker.address, *group, topic, str(tmp_path / "checkpoint")]
    process = subprocess.Popen(
        [sys.executable, "-u", f"examples/{name}.py", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        counts = (line.strip() for line in process.stdout if line.startswith("("))
        expected = ["('be', 2)", "('not', 1)", "('or', 1)", "('to', 2)"]
        assert sorted(islice(counts, 4)) == expected
        process.terminate()
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, "Traceback" in errors) == (143, False), errors
    finally:
        process.kill()
        process.wait()


def test_every_example_is_run_by_a_test() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [p.stem for p in (ROOT / "examples").glob("*.py") if p.stem not in tests] == []
