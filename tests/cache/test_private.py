"""A cache that others may write to is not used, and that is said."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
from typer.testing import CliRunner

import delegate
from delegate.cache.runtime import folder as module
from delegate.cache.runtime.folder import make_private, private
from delegate.cli.app import app

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions of POSIX")


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    monkeypatch.setattr(module, "_warned", set())


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o702, 0o777, 0o1777])
@pytest.mark.parametrize("part", ["", "artifacts", "packed", "plugins", "choices"])
def test_one_that_others_may_write_to(tmp_path, mode, part):
    make_private(tmp_path / "cache" / part)
    (tmp_path / "cache" / part).chmod(mode)
    with pytest.warns(RuntimeWarning, match=r"other users can write to its folder.*chmod go-w"):
        assert private(tmp_path / "cache") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert private(tmp_path / "cache") is None  # said once


PARENTS = {  # modes of the folder above the cache, and if the cache is used
    "of others": (0o777, False), "of a group": (0o770, False), "with the sticky bit": (0o1777, True),
    "of a group with the sticky bit": (0o1770, True), "of the user": (0o755, True),
}  # fmt: skip


@pytest.mark.parametrize("depth", ["cache", "a/b/cache"])
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("link", [True, False])
@pytest.mark.parametrize(("mode", "is_used"), PARENTS.values(), ids=PARENTS)
def test_a_parent(tmp_path, mode, is_used, link, exists, depth):
    parent = tmp_path / "parent"
    make_private(parent / depth if exists else parent)
    parent.chmod(mode)
    folder = parent / depth
    if link:
        (tmp_path / "link").symlink_to(parent)
        folder = tmp_path / "link" / depth
    if is_used:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert private(folder) == folder
        return
    with pytest.warns(RuntimeWarning, match=r"other users can write to .*, above its folder .*: run `chmod go-w"):
        assert private(folder) is None


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives folders away")
def test_a_parent_of_another_user(tmp_path):
    make_private(tmp_path / "parent" / "cache")
    os.chown(tmp_path / "parent", 12345, 12345)
    with pytest.warns(RuntimeWarning, match="the user 12345 owns .*parent, above its folder"):
        assert private(tmp_path / "parent" / "cache") is None


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives folders away")
def test_one_of_another_user(tmp_path):
    os.chown(tmp_path, 12345, 12345)
    with pytest.warns(RuntimeWarning, match="the user 12345 owns its folder"):
        assert private(tmp_path) is None


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives links away")
@pytest.mark.parametrize("place", ["cache", "cache/artifacts", "parent/cache"])
def test_a_link_of_another_user(tmp_path, place, monkeypatch):
    """Its target is a folder of this user, which nothing is written to or removed from."""
    target = tmp_path / "target"
    make_private(target / "artifacts")
    entry = target / "artifacts" / "x.entry"
    entry.touch()
    folder = tmp_path / ("parent/cache" if "parent" in place else "cache")
    link = folder / "artifacts" if "artifacts" in place else folder.parent if "parent" in place else folder
    make_private(link.parent)
    (tmp_path / "target" / "cache").mkdir(mode=0o700)
    link.symlink_to(target / "artifacts" if "artifacts" in place else target)
    assert private(folder) == folder  # a link of the user's own
    os.lchown(link, 12345, 12345)
    with pytest.warns(RuntimeWarning, match="the user 12345 owns the link "):
        assert private(folder) is None
    monkeypatch.setenv("DELEGATE_CACHE", str(folder))
    done = CliRunner().invoke(app, ["cache", "clear"])
    assert done.exit_code == 1
    assert "the cache is not cleared: the user 12345 owns the link " in done.stderr
    assert entry.exists()


def test_ones_that_are_used(tmp_path):
    old = os.umask(0)
    try:
        make_private(tmp_path / "a" / "b" / "artifacts")
    finally:
        os.umask(old)
    (tmp_path / "read").mkdir(mode=0o755)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in (tmp_path / "a" / "b", tmp_path / "a", tmp_path / "absent", tmp_path / "read"):
            assert private(path) == path


def test_lowering_uses_none_of_it(tmp_path, monkeypatch):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path))
    exported = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    with pytest.warns(RuntimeWarning, match="the cache is not used"):
        delegate.to_backend(exported, "xnnpack")
    assert not list(tmp_path.iterdir())
