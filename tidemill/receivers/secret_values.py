"""Tokens and passwords, and where they come from.

A program in a checkpoint directory is a file that lives long and is copied into backups: it may name the
place of a secret, and never has the secret itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.errors import OptionError

Secret = Callable[[], str]


@dataclass(frozen=True)
class LiteralSecret:
    """A secret that the program has as a text. It travels to executors; a checkpoint refuses it."""

    value: str = field(repr=False)

    def __call__(self) -> str:
        return self.value


@dataclass(frozen=True)
class FileSecret:
    """A secret in a file on the executor, without the white space around it."""

    path: str

    def __call__(self) -> str:
        with open(self.path, encoding="utf-8") as file:
            return file.read().strip()


@dataclass(frozen=True)
class EnvironmentSecret:
    """A secret in an environment variable of the driver, or else of the executor.

    The driver reads its variable at every start of the stream, and sends the secret to the executor.
    """

    name: str

    def __call__(self) -> str:
        value = os.environ.get(self.name)
        if not value:
            raise OptionError(
                f"the environment variable {self.name}, which should have a secret, is set neither on the "
                "driver nor on this executor",
                self.name,
            )
        return value
