"""The source of a configuration: plain data, and the line and column of every key and value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from delegate.config.plain_yaml import NotPlain, Path, Place, parse
from delegate.errors import ConfigError
from delegate.whole_files import open_to_read

MOST_BYTES = 1 << 18  # of a configuration file


@dataclass(frozen=True, slots=True)
class Source:
    """Data and the places of its keys and values.

    Args:
        data: plain Python values.
        file: its name; empty for data that no file holds.
        values: path -> (line, column) of a value, from 1.
        keys: path -> (line, column) of the key that leads to a value, from 1.
    """

    data: Any
    file: str = ""
    values: Mapping[Path, Place] = field(default_factory=dict)
    keys: Mapping[Path, Place] = field(default_factory=dict)

    def where(self, path: Path, *, of_key: bool = False) -> str:
        """Return the place "file:line:column" of a value or of its key, else of the nearest value around it."""
        marks = self.keys if of_key and path in self.keys else self.values
        for end in range(len(path), -1, -1):
            if mark := marks.get(path[:end]):
                return f"{self.file}:{mark[0]}:{mark[1]}"
        return self.file


def read_yaml(file: FilePath) -> Source:
    """Read a YAML file.

    Raises:
        ConfigError: it is missing, unreadable, no valid YAML, empty, or has a key twice.
    """
    try:
        with open_to_read(file) as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            what = f"the configuration has more than {MOST_BYTES} bytes"
            raise ConfigError(what, where=str(file), remedy="give a YAML file of a few lines")
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        where = f"{file}:{line}"
        raise ConfigError(f"the configuration is not UTF-8 text: byte {error.start}", where=where) from None
    except ValueError as error:  # of a path with a null byte
        raise ConfigError(f"cannot read the configuration {str(file)!r}: {error}", remedy="check the path") from None
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {str(file)!r}", remedy="check the path") from None
    except OSError as error:
        raise ConfigError(f"cannot read the configuration: {error.strerror}", where=str(file)) from None
    try:
        parsed = parse(text)
    except NotPlain as error:
        raise ConfigError(error.what, where=error.where(str(file)), remedy=error.remedy) from None
    if parsed is None:
        raise ConfigError("the configuration is empty", where=str(file), remedy="write at least `version: 1`")
    return Source(parsed.data, str(file), parsed.values, parsed.keys)
