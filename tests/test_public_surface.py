"""The names that programs may import, and the tree of errors that they may catch."""

from __future__ import annotations

import importlib
import pickle
import re

import pytest

from tidemill import errors

SURFACE = {
    "tidemill": ["__version__", "attach", "detach", "register_source", "session"],
    "tidemill.streaming": [
        "DStream",
        "State",
        "StateSpec",
        "StreamingContext",
        "StreamingListener",
    ],
    "tidemill.sql": [
        "DataStreamReader",
        "DataStreamWriter",
        "StreamingQuery",
        "StreamingQueryListener",
        "StreamingQueryManager",
    ],
    "tidemill.receivers": [
        "EnvironmentSecret",
        "FileSecret",
        "HttpReceiver",
        "MqttReceiver",
        "MqttTls",
        "Receiver",
        "register_receiver",
    ],
    "tidemill.testing": ["BatchDriver", "ManualClock", "MemoryStream", "collected"],
}


@pytest.mark.parametrize("package", SURFACE)
def test_a_package_exports_exactly_these_names(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == SURFACE[package]
    assert all(getattr(module, name) is not None for name in SURFACE[package])


def error_classes() -> dict[str, type[errors.TidemillError]]:
    return {
        name: each
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.TidemillError)
    }


def drawn_errors() -> list[tuple[str, str | None, bool]]:
    """Each error of the drawing in the docstring: its name, its base, and whether it has a star."""
    drawn: list[tuple[str, str | None, bool]] = []
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^ {4}((?:[│ ]   )*(?:[├└]── )?)(\w+Error)( \*)?(?= {2}|$)", line)
        if match:
            depth = len(match[1]) // 4
            del above[depth:]
            drawn.append((match[2], above[-1] if above else None, match[3] is not None))
            above.append(match[2])
    return drawn


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    actual = {
        name: (
            None if each is errors.TidemillError else each.__bases__[0].__name__,
            each.try_again,
        )
        for name, each in error_classes().items()
    }
    drawn = drawn_errors()
    assert {name: (base, star) for name, base, star in drawn} == actual
    assert len(drawn) == len(actual)


def test_programs_written_for_pyspark_catch_the_errors_they_know() -> None:
    known = {
        errors.UsageError: ValueError,
        errors.IllegalStateError: RuntimeError,
        errors.UnsupportedError: NotImplementedError,
        errors.StopTimeoutError: TimeoutError,
        errors.RpcTimeoutError: TimeoutError,
    }
    for ours, theirs in known.items():
        assert issubclass(ours, theirs)


ERRORS = [
    errors.OptionError("bad", option="maxFilesPerTrigger"),
    errors.SourceError("bad", source="rate"),
    errors.SinkError("bad", sink="parquet"),
    errors.QueryError("bad", operation="Sort"),
    errors.ProgramError("bad", stream="orders"),
    errors.RpcRefusedError("bad", "host:1", "call", reason="version"),
    errors.RpcRemoteError("host:1", "call", "KeyError", "'x'"),
    errors.BatchError("Traceback", "batch 7", cause=ValueError("x"), batch_time_ms=7),
    errors.CheckpointInUseError("bad", "/ck", {"pid": 1}),
    errors.DamagedCheckpointError("/ck/owner", "cut off", "Restore it.", "/ck", 7),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_attributes_on_the_way_from_a_task(error: errors.TidemillError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert {k: str(v) for k, v in vars(copy).items()} == {k: str(v) for k, v in vars(error).items()}
