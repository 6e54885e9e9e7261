"""Names of Java's classes are known without a call to the JVM."""

from __future__ import annotations

import pytest
from py4j.java_gateway import GatewayClient
from py4j.protocol import Py4JError
from pyspark import SparkContext

from tidemill.spark.java_names import java_names


def test_classes_and_what_is_in_them(sc: SparkContext) -> None:
    java = java_names(sc)
    assert java is java_names(SparkContext)
    assert java.java.lang.Integer.parseInt("42") == 42
    assert java.java.util.Map.Entry is not None  # a class within a class
    assert java.scala.Some("it").get() == "it"
    assert str(java.of("scala.None$").__getattr__("MODULE$")) == "None"
    assert java.of("java.util").ArrayList().size() == 0


def test_a_name_takes_no_call(sc: SparkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    java = java_names(sc)

    def called(*_: object, **__: object) -> None:
        raise AssertionError("the JVM was asked")

    monkeypatch.setattr(GatewayClient, "send_command", called)
    assert java.org.apache.spark.sql.Row is not None


def test_a_class_that_is_not_there_is_an_error_when_it_is_used(sc: SparkContext) -> None:
    with pytest.raises(Py4JError, match="NoSuchThing"):
        java_names(sc).org.apache.spark.NoSuchThing()
    with pytest.raises(TypeError):
        java_names(sc).org.apache.spark.nothing()
