"""The page as a text: escaped, self-contained, written completely or not at all, made without torch."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import replace

import pytest

from delegate.errors import DelegateError
from delegate.program.memory_picture import memory_pictures
from delegate.report import Report
from delegate.report.page import page
from delegate.runtime.profile import Profile
from tests.support.programs import SAMPLES
from tests.support.reports import HOSTILE, data_of, report


def test_the_data_is_that_of_the_report(tmp_path):
    report().save_html(tmp_path / "a.html", name="net")
    (data,) = data_of((tmp_path / "a.html").read_text())["reports"]
    (method,) = data["methods"]
    assert data["name"] == "net"
    assert data["notes"] == ["a note for people"]
    assert [row[0] for row in method["nodes"]] == [n.name for n in report().nodes]
    texts, verdicts = data["texts"], data["verdicts"]
    assert [texts[row[1]] for row in method["nodes"]] == [n.op for n in report().nodes]
    ((backend, number),) = method["nodes"][3][-1]
    assert texts[backend] == "xnnpack"
    yes, *words = verdicts[number]
    assert (yes, [texts[w] for w in words]) == (0, ["unsupported rank", "5 dimensions are too many", "reshape it to 4"])
    assert method["memory"]["blocks"][0] == ["sort_0", 0, 0, 64, 1, 3]
    assert method["placements"][0]["plans"][1]["against"] == {"ratio": 2.0, "low": 1.5, "high": 2.5}


def test_hostile_names_stay_within_the_data():
    hostile = replace(report().nodes[0], name=HOSTILE, op=HOSTILE, module=HOSTILE, source=HOSTILE, result=HOSTILE)
    evil = replace(report(), nodes=(hostile,), notes=(HOSTILE,))
    text = page([evil.page_data(HOSTILE)])
    assert text.count("<script") == text.count("</script>") == 3
    assert "onerror=alert(1)>" not in text
    assert not any(c in text for c in "\u202e\x1b")
    (data,) = data_of(text)["reports"]
    assert data["notes"] == [HOSTILE.replace("\u202e", r"\u202e").replace("\x1b", r"\x1b")]


def test_the_policy_allows_the_two_scripts_and_nothing_else():
    text = page([report().page_data("net")])
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', text)[1]
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert len(scripts) == 2
    expected = " ".join(f"'sha256-{h}'" for h in hashes)
    assert policy == f"default-src 'none'; script-src {expected}; style-src 'unsafe-inline'; img-src data:"
    assert not re.findall(r'(?:src|href)="', text)
    assert "Chris Pettitt" in text  # the licence of the library asks for it


def test_what_cannot_be_written_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.html"
    path.write_text("old")
    for target in (tmp_path / "no" / "a.html", tmp_path, path / "below"):
        with pytest.raises(DelegateError, match="the report cannot be written"):
            report().save_html(target)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(DelegateError, match=r"the report cannot be written: No space left on device .*free space"):
        report().save_html(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.html"]


def test_notebooks_show_a_frame_without_rights():
    shown = report()._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts"')
    assert shown.count("<") == 2  # the frame alone
    profile = Profile()
    assert profile._repr_html_().startswith("<pre>method")


def test_the_memory_is_no_part_of_the_json_and_of_equality():
    text = report().to_json()
    assert "memory" not in json.loads(text)
    assert Report.from_json(text) == report()


@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)
def test_memory_pictures_lie_within_their_arenas(make):
    program = make()
    for picture, method in zip(memory_pictures(program), program.methods, strict=True):
        assert picture.arenas == method.arenas
        for block in picture.blocks:
            assert 0 <= block.start <= block.end < picture.steps
            assert block.offset + block.size <= picture.arenas[block.space]
    static = memory_pictures(SAMPLES["static"]())[0]
    assert [(b.name, b.space, b.offset, b.size) for b in static.blocks] == [("mul", 0, 0, 32), ("xnnpack_0", 1, 64, 32)]
    assert static.constants == (("weight", 32),)
    assert static.delegates == (("xnnpack_0", "xnnpack", 6, 0, 0),)


def test_the_peak_follows_dynamic_sizes():
    (forward, nothing) = memory_pictures(SAMPLES["dynamic"]())
    assert nothing.peaks == ()
    texts, peaks = zip(*forward.peaks, strict=True)
    assert texts == ("batch=2, u0=0", "batch=65, u0=50", "batch=128, u0=100")
    assert peaks == (12, 396, 768)  # float32[(batch + 1) // 2, 3]
