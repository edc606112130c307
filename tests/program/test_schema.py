"""The generated reader is that of the schema, and the codes in files never change."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

from delegate.program import schema_generated
from delegate.program.dtypes import DType
from delegate.program.expr import Op
from delegate.program.model import StorageKind, Structure

ROOM = pathlib.Path(schema_generated.__file__).parent
FLATC_VERSION = "2.0.8"


def flatc() -> str:
    found = shutil.which("flatc")
    if found is None:
        pytest.skip("flatc is not installed")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if FLATC_VERSION not in version:
        pytest.skip(f"{version.strip()} is not the {FLATC_VERSION} that made the reader")
    return found


def test_the_reader_is_generated_from_the_schema(tmp_path):
    command = [flatc(), "--python", "--gen-onefile", "-o", str(tmp_path), str(ROOM / "schema.fbs")]
    subprocess.run(command, check=True)
    assert (tmp_path / "schema_generated.py").read_text() == (ROOM / "schema_generated.py").read_text()


@pytest.mark.parametrize(
    ("enum", "codes"),
    [
        (StorageKind, {"ARENA": 0, "CONSTANT": 1, "STATE": 2, "INPUT": 3, "OUTPUT": 4, "ALIAS": 5}),
        (Structure, {"IF": 0, "WHILE": 1, "SCAN": 2, "MAP": 3}),
        (Op, {"CONST": 0, "SYMBOL": 1, "ADD": 2, "MUL": 3, "FLOORDIV": 4, "MOD": 5, "MAX": 6, "MIN": 7, "FLOAT": 8,
              "TRUEDIV": 9, "POW": 10, "EQ": 11, "NE": 12, "LT": 13, "LE": 14, "AND": 15, "OR": 16, "NOT": 17,
              "TO_FLOAT": 18, "FLOOR": 19, "CEIL": 20, "TRUNC": 21, "ROUND": 22, "SQRT": 23, "EXP": 24, "LOG": 25,
              "LOG2": 26}),
        (DType, {"uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7,
                 "complex64": 9, "complex128": 10, "bool": 11, "bfloat16": 15, "uint16": 27, "uint32": 28,
                 "uint64": 29}),
    ],
)  # fmt: skip
def test_codes_are_stable(enum, codes):
    """A code that a file may hold keeps its meaning: new names may join, none may change."""
    assert {e.name: e.value for e in enum}.items() >= codes.items()


def test_the_code_of_a_removed_structure_is_not_used_again():
    assert 4 not in {structure.value for structure in Structure}  # PARALLEL
