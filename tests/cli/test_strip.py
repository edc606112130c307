"""`delegate strip`: the debug info goes, and a failure leaves the files."""

from __future__ import annotations

from delegate.program.file import load
from delegate.program.text import debug_bytes
from tests.cli.programs import save_sum
from tests.support.commands import call


def test_strip_and_inspect(tmp_path):
    path = save_sum(tmp_path / "sum.dlg")
    size = debug_bytes(load(path))
    assert f"debug info: {size} bytes" in call("inspect", str(path))[0]
    out, _ = call("strip", str(path), "-o", str(tmp_path / "small.dlg"))
    assert out.startswith(f"saved {tmp_path / 'small.dlg'}, ")
    assert "debug info" not in call("inspect", str(tmp_path / "small.dlg"))[0]
    assert "has no debug info" in call("explain", str(tmp_path / "small.dlg"), code=1)[1]
    assert load(path).report
    call("strip", str(path))  # in place
    assert path.read_bytes() == (tmp_path / "small.dlg").read_bytes()


def test_a_failed_strip_leaves_the_file(tmp_path):
    path = save_sum(tmp_path / "sum.dlg")
    before = path.read_bytes()
    call("strip", str(path), "-o", str(tmp_path / "no" / "x.dlg"), code=1)
    bad = tmp_path / "bad.dlg"
    bad.write_bytes(before[:-1])
    call("strip", str(bad), code=1)
    assert path.read_bytes() == before
    assert bad.read_bytes() == before[:-1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.dlg", "sum.dlg"]
