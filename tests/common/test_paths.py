"""What a path is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.storage import open_storage
from tidemill.common.paths import absolute_location, local_path
from tidemill.errors import OptionError


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/in/a", "/in/a"),
        ("/in//a/", "/in/a"),
        ("//in/a", "//in/a"),
        ("in", os.path.abspath("in")),
        ("./in/../in", os.path.abspath("in")),
        ("a:b", os.path.abspath("a:b")),
        ("/in/10:30", "/in/10:30"),
        ("file:/in/a", "/in/a"),
        ("file:///in/a%20b", "/in/a%20b"),
        ("file://localhost/in", "/in"),
        ("hdfs://host:8020/in", None),
        ("hdfs:/in", None),
        ("s3a://bucket/in", None),
    ],
)
def test_a_path_is_of_this_machine_or_of_another_file_system(path: str, local: str | None) -> None:
    assert local_path(path) == local
    assert absolute_location(path) == (local or path)


def test_a_path_without_a_scheme_belongs_to_the_default_file_system() -> None:
    assert local_path("/in", "hdfs") is None
    assert local_path("file:/in", "hdfs") == "/in"


@pytest.mark.parametrize("path", ["file:in", "file:", "file://tmp", "file://tmp/in", "file:./in"])
def test_a_file_uri_that_is_not_absolute_is_refused(path: str) -> None:
    with pytest.raises(OptionError, match="'file:///"):
        local_path(path)


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_all_forms_of_a_path_open_the_same_storage(tmp_path: Path, form: str) -> None:
    storage = open_storage(form.format(tmp_path / "checkpoint"))
    assert isinstance(storage, LocalStorage)
    assert storage.uri == str(tmp_path / "checkpoint")


def test_a_uri_without_a_host_is_no_folder_of_the_working_directory() -> None:
    with pytest.raises(OptionError, match="write the whole URI"):
        open_storage("hdfs:/checkpoint")
