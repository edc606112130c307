"""A file from a stranger runs no code under the name of a program; a .pt2 file is code, and is named so."""

from __future__ import annotations

import io
import json
import os
import zipfile

import pytest
import torch
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from delegate.errors import ExportError


class Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def harmful(tmp_path):
    """The bytes of an exported program whose weights are a pickle that makes a file, and the path of that file."""
    sound, mark, made = io.BytesIO(), tmp_path / "harm", io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), sound)
    pickled = io.BytesIO()
    torch.save(Harm(mark), pickled)
    with zipfile.ZipFile(sound) as source, zipfile.ZipFile(made, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith("weights_config.json"):
                data = json.dumps(json.loads(data.replace(b'"use_pickle": false', b'"use_pickle": true'))).encode()
            elif "/weights/" in name:
                data = pickled.getvalue()
            target.writestr(name, data)
    return made.getvalue(), mark


@pytest.mark.parametrize("name", ["x.dlg", "x.DLG", "x.bin", "x.pt", "x"])
@pytest.mark.parametrize("command", [["explain"], ["lower", "-o", "out.dlg"]])
def test_no_other_name_is_opened_as_a_model(harmful, command, name, tmp_path):
    data, mark = harmful
    (tmp_path / name).write_bytes(data)
    done = CliRunner().invoke(app, [command[0], str(tmp_path / name), *command[1:]])
    assert done.exit_code != 0
    assert not mark.exists()
    with pytest.raises(ExportError, match=r"\.pt2"):
        delegate.to_backend(tmp_path / name, "xnnpack")
    assert not mark.exists()


def test_a_model_is_code(harmful, tmp_path):
    """What docs/how-to/security.md says of .pt2 files; if torch stops to unpickle them, it can promise more."""
    data, mark = harmful
    (tmp_path / "x.pt2").write_bytes(data)
    with pytest.raises(ExportError):
        delegate.to_backend(tmp_path / "x.pt2", "xnnpack")
    assert mark.exists()
