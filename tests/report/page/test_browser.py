"""The page in a real browser: it draws, and search, keys, overlays, tabs and hostile names behave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delegate.events.kinds import BoundInstruction, InstructionRun, OperatorRun
from delegate.report import Report
from delegate.report.page import page
from delegate.report.rows import LayerAccuracy, NodeReport
from delegate.runtime.profile import Profile
from delegate.verdict import YES
from tests.support.browser import Opened, browser
from tests.support.reports import HOSTILE, report

__all__ = ["browser"]


def measured() -> Profile:
    """Return a profile of three runs of the partition, with an operator of its library, and of one portable node."""
    profile = Profile()
    partition = BoundInstruction("0", "forward", "xnnpack_0", "partition xnnpack_0", kind="partition")
    sort = BoundInstruction("1", "forward", "sort_0", "aten.sort.default", source="model.py:6")
    for run in range(3):
        profile(InstructionRun(partition, 0, 3000, 1, 0, not run))
        profile(InstructionRun(sort, 0, 1000, 1, 0, not run))
        profile(OperatorRun("xnnpack", "xnnpack_0", "fc", "Fully Connected (NC, F32)", 0, 2500))
    return profile


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "one.html"
    path.write_text(page([report().page_data("net", measured())]))
    return path


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "two.html"
    path.write_text(page([report().page_data("first"), report(moved=True).page_data("second")]))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_without_errors_and_without_network(browser, one, scheme):
    with Opened(browser, one, scheme) as opened:
        surface = opened.run("getComputedStyle(document.body).backgroundColor")
        assert (surface == "rgb(20, 23, 27)") == (scheme == "dark")
        drawn = opened.run(
            "(() => { const c = delegatePage.views[0].canvas; const d = c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height).data; return new Set(new Uint32Array(d.buffer)).size; })()"
        )
        assert drawn > 20  # colours of a picture that is not blank
        for tab in ("outline", "memory", "time", "placement", "accuracy", "notes", "graph"):
            opened.page.click(f"#tab-{tab}")
        assert opened.messages == []
        assert opened.requests == [one.as_uri()]


def test_search_finds_a_node_and_shows_its_verdicts(browser, one):
    with Opened(browser, one) as opened:
        opened.press("c", "/")
        opened.page.keyboard.type("sort_1")
        opened.press("Enter")
        details = opened.text("aside")
        for words in ("aten.sort.default", "float32[1, 8]", "model.py:6", "blocks.1.sort", "portable",
                      "unsupported rank", "5 dimensions are too many", "Remedy: reshape it to 4"):  # fmt: skip
            assert words in details
        assert opened.run("delegatePage.views[0].selected.parent.expanded")
        assert opened.run("document.activeElement === delegatePage.views[0].canvas")
        opened.press("/")
        opened.page.keyboard.type("nonsense")
        assert "Nothing found" in opened.text("#found")


def test_keys_expand_and_follow_edges(browser, one):
    with Opened(browser, one) as opened:
        opened.run("delegatePage.views[0].canvas.focus()")
        opened.press("c")  # collapses all
        opened.press("ArrowDown", "ArrowDown")
        assert opened.run("delegatePage.views[0].selected.path") == "blocks"
        opened.press("Enter")
        assert opened.run("delegatePage.views[0].selected.expanded")
        assert "blocks expanded" in opened.text("[role=status]")
        opened.press("ArrowDown")
        assert opened.run("delegatePage.views[0].selected.name") == "head"
        opened.press("ArrowUp", "Enter")
        assert not opened.run("delegatePage.views[0].selected.expanded")


def test_a_partition_opens_down_to_its_nodes(browser, one):
    with Opened(browser, one) as opened:
        opened.run("(() => { const v = delegatePage.views[0]; v.select(v.graph.byName.get('relu_0')); })()")
        details = opened.text("aside")
        assert "Partition xnnpack_0" in details
        assert "5 operators" in details
        assert "31.5 dB" in details
        opened.page.click("aside button:text-is('head')")
        assert opened.run("delegatePage.views[0].selected.name") == "head"


def test_overlays_are_switched_by_keys(browser, one):
    expected = {
        "2": ("work", "13%"),
        "3": ("time", "1.0 µs"),
        "4": ("memory", "32 B"),
        "5": ("error", None),
        "6": ("copies", "32 B"),
    }
    value = """(() => {
        const value = delegatePage.overlay.value(delegatePage.views[0].graph.byName.get("sort_0"));
        return value == null ? null : delegatePage.overlay.text(value);
    })()"""
    with Opened(browser, one) as opened:
        for key, (name, text) in expected.items():
            opened.press(key)
            assert opened.run("delegatePage.overlay.key") == name
            assert opened.run(value) == text
        assert opened.run("delegatePage.overlay.value(delegatePage.views[0].graph.byName.get('head'))") == 32
        opened.press("1")
        assert opened.page.get_attribute(".overlays button:first-child", "aria-checked") == "true"


def test_an_overlay_without_values_stays_off(browser, two):
    with Opened(browser, two) as opened:
        opened.press("3")
        assert opened.run("delegatePage.overlay.key") == "backend"
        assert "this report has no such values" in opened.text("[role=status]")


def test_panels(browser, one):
    with Opened(browser, one) as opened:
        shown = {}
        for tab in ("memory", "time", "placement", "accuracy", "notes"):
            opened.page.click(f"#tab-{tab}")
            shown[tab] = opened.text("#panel")
        assert "Peak: 128 B alive at step 2 of 6" in shown["memory"]
        assert "Blobs of partitions, with their weights: 4.0 KiB" in shown["memory"]
        assert "Measured time by module" in shown["time"]
        assert shown["time"].index("partition xnnpack_0") < shown["time"].index("aten.sort.default")
        assert "Fully Connected (NC, F32)" in shown["time"]
        assert (
            "Winner: xnnpack, 1.00 ms. Runner-up: portable, 2.00 ms, 2.000 [1.500, 2.500] times" in shown["placement"]
        )
        assert "No other plan costs less and has a smaller error" in shown["placement"]
        assert "a third plan" in shown["placement"]
        assert "SQNR along the depth" in shown["accuracy"]
        assert "a note for people" in shown["notes"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_quantized_layers_are_plotted_and_linked(browser, one, scheme):
    with Opened(browser, one, scheme) as opened:
        opened.page.click("#tab-accuracy")
        plot = opened.page.locator("svg.plot")
        assert plot.get_attribute("role") == "img"
        for attribute, words in (("aria-labelledby", "SQNR of quantized layers"), ("aria-describedby", "5 layers")):
            assert words in opened.run(f"document.getElementById('{plot.get_attribute(attribute)}').textContent")
        heights = "[...document.querySelectorAll('.plot {}')].map((e) => Number(e.getAttribute('{}')))"
        added, total = opened.run(heights.format("circle", "cy")), opened.run(heights.format("rect", "y"))
        assert len(added) == len(total) == 5
        assert sorted(range(5), key=added.__getitem__) == [1, 3, 0, 4, 2], "higher is better; exact is at the top"
        assert sorted(range(5), key=total.__getitem__) == [0, 1, 3, 4, 2]
        assert "added 30.5 dB, total 29.0 dB" in opened.page.locator(".plot circle title").nth(2).text_content()
        rows = opened.page.locator("table:has(caption:text('noisiest of 5')) tbody tr").all_inner_texts()
        assert [row.split()[0] for row in rows] == ["linear_1", "head", "linear_0", "gone", "conv2d"]
        links = opened.page.locator("table:has(caption:text('noisiest of 5')) button").all_inner_texts()
        assert links == ["linear_1", "head", "linear_0", "conv2d"], "all but the one that the graph has not"
        colour = opened.run("getComputedStyle(document.querySelector('polyline.added')).stroke")
        assert colour == {"light": "rgb(11, 98, 214)", "dark": "rgb(108, 176, 255)"}[scheme]
        opened.page.click("#panel button:text-is('conv2d')")
        assert opened.run("delegatePage.views[0].selected.name") == "relu_0", "the only node of the layer's module"
        assert opened.run("delegatePage.tab") == "graph"
        assert opened.messages == []


def test_forged_layers_are_drawn(browser, tmp_path):
    odd = (float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 0.0)
    pairs = [(added, total) for added in odd for total in odd] * 9
    rows = tuple(LayerAccuracy("forward", HOSTILE, HOSTILE, *pair) for pair in pairs)
    path = tmp_path / "layers.html"
    for number, layers in enumerate((rows, rows[:1], rows[:36], rows[:50] * 100)):
        forged = Report.from_json(replace(report(), layers=layers).to_json())
        path.write_text(page([forged.page_data("forged"), forged.page_data("forged")]))
        with Opened(browser, path) as opened:
            opened.page.click("#tab-accuracy")
            assert opened.page.locator("svg.plot").count() == 2, number
            assert "NaN" not in opened.run(
                "document.querySelector('svg.plot').outerHTML.replace(/<title.*?title>/g, '')"
            )
            assert opened.messages == []


def test_the_outline_is_a_tree_for_the_keyboard(browser, one):
    with Opened(browser, one) as opened:
        opened.page.click("#tab-outline")
        assert opened.run("document.querySelectorAll('[role=tree] > [role=treeitem]').length") == 4
        opened.run("document.querySelector('[role=treeitem]').focus()")
        opened.press("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight")
        assert opened.run("document.activeElement.querySelector('b').textContent") == "blocks.0"
        assert opened.run("document.activeElement.getAttribute('aria-level')") == "2"
        opened.press("ArrowLeft", "ArrowLeft")
        assert opened.run("document.activeElement.getAttribute('aria-expanded')") == "false"
        opened.press("End")
        assert "aten.linear.default" in opened.text("aside")


def test_moved_nodes_are_marked_and_both_sides_follow(browser, two):
    with Opened(browser, two) as opened:
        moved = "delegatePage.views.map(v => v.graph.leaves.filter(l => l.moved).map(l => l.name + ' ' + l.moved))"
        assert opened.run(moved) == [["head on portable"], ["head on xnnpack"]]
        opened.press("m")
        assert opened.run("delegatePage.views.map(v => v.selected.name)") == ["head", "head"]
        opened.page.click("#tab-changes")
        assert "1 nodes moved" in opened.text("#panel")
        assert opened.messages == []


def test_hostile_names_do_not_execute(browser, tmp_path):
    verdicts = {HOSTILE: YES}
    nodes = tuple(
        NodeReport("forward", f"{HOSTILE}{i}", HOSTILE, HOSTILE, HOSTILE, verdicts, HOSTILE, HOSTILE, f"{HOSTILE}.{i}")
        for i in range(3)
    )
    names = ("__proto__", "constructor", "toString")
    nodes += tuple(NodeReport("forward", n, n, n, "", {}, n, n, n, inputs=names) for n in names)
    evil = replace(report(), nodes=nodes, notes=(HOSTILE,), methods=("forward", HOSTILE))
    path = tmp_path / "evil.html"
    path.write_text(page([evil.page_data(HOSTILE), evil.page_data(HOSTILE)]))
    with Opened(browser, path) as opened:
        dialogs = []
        opened.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        opened.press("e", "/")
        opened.page.keyboard.type("script")
        opened.press("Enter")
        for tab in ("outline", "memory", "time", "placement", "accuracy", "changes", "notes", "graph"):
            opened.page.click(f"#tab-{tab}")
        assert opened.run("document.querySelectorAll('img, #app script').length") == 0
        assert dialogs == []
        assert opened.messages == []


def test_an_empty_report_and_a_method_without_nodes(browser, tmp_path):
    path = tmp_path / "empty.html"
    path.write_text(page([Report(methods=("forward",)).page_data("nothing")]))
    with Opened(browser, path) as opened:
        for tab in ("outline", "memory", "time", "placement", "accuracy", "notes", "graph"):
            opened.page.click(f"#tab-{tab}")
        opened.press("e", "c", "0", "ArrowDown", "2", "m")
        assert opened.messages == []


def test_a_flat_model_of_many_nodes_is_split_and_expands(browser, tmp_path):
    chain = [NodeReport("forward", "n0", "aten.relu.default", inputs=("input x",))]
    chain += [NodeReport("forward", f"n{i}", "aten.relu.default", inputs=(f"n{i - 1}",)) for i in range(1, 3000)]
    path = tmp_path / "flat.html"
    path.write_text(page([Report(methods=("forward",), nodes=tuple(chain)).page_data("flat")]))
    with Opened(browser, path) as opened:
        assert opened.run("delegatePage.views[0].graph.root.children.length") <= 120
        opened.run("delegatePage.views[0].canvas.focus()")
        opened.press("e")
        opened.press("/")
        opened.page.keyboard.type("n2999")
        opened.press("Enter")
        assert opened.run("delegatePage.views[0].selected.name") == "n2999"
        assert opened.messages == []


def test_a_forged_graph_is_drawn_or_leaves_the_page_alive(browser, tmp_path):
    """Edges to itself and in circles, equal names, paths deeper than the stack, numbers that are none."""
    deep = ".".join("m" * 20_000)
    nodes = (
        NodeReport("forward", "self", "op", inputs=("self", "self", "b")),
        NodeReport("forward", "a", "op", module=deep, inputs=("b", "c"), nbytes=10**400, work=float("nan")),
        NodeReport("forward", "b", "op", module="m", inputs=("a",), nbytes=-5, time=float("inf")),
        NodeReport("forward", "c", "op", module="", inputs=("a", "nobody", "input ", "")),
        NodeReport("forward", "c", "op", module="..", inputs=("\ud800",)),
    )
    path = tmp_path / "forged.html"
    path.write_text(page([Report(("forward",), nodes).page_data("forged")]))
    with Opened(browser, path) as opened:
        opened.run("delegatePage.views[0].canvas.focus()")
        opened.press("e", "2", "4", "6", "1", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp", "c", "0")
        for tab in ("outline", "memory", "time", "placement", "accuracy", "notes", "graph"):
            opened.page.click(f"#tab-{tab}")
        assert opened.messages == []


def test_the_map_moves_the_view(browser, tmp_path):
    chain = [NodeReport("forward", f"n{i}", "aten.relu.default", inputs=(f"n{i - 1}",)) for i in range(100)]
    path = tmp_path / "long.html"
    path.write_text(page([Report(methods=("forward",), nodes=tuple(chain)).page_data("long")]))
    with Opened(browser, path) as opened:
        box = opened.run("delegatePage.views[0].overview.box()")
        stage = opened.page.locator(".view > canvas").bounding_box()
        opened.page.mouse.click(stage["x"] + box["x"] + box["w"] / 2, stage["y"] + box["y"] + box["h"] * 0.9)
        middle = "(v => (v.height / 2 - v.ty) / v.scale / v.graph.root.h)(delegatePage.views[0])"
        assert 0.88 < opened.run(middle) < 0.92
        assert opened.run("delegatePage.views[0].selected") is None


def test_bodies_of_control_flow_are_groups(browser, tmp_path):
    nodes = (
        NodeReport("forward", "cond", "cond", inputs=("input x",)),
        NodeReport("forward", "true_graph_0.relu", "aten.relu.default", module="block", inputs=("input x",)),
        NodeReport("forward", "true_graph_0.mul", "aten.mul.Tensor", inputs=("true_graph_0.relu",)),
    )
    path = tmp_path / "flow.html"
    path.write_text(page([Report(methods=("forward",), nodes=nodes).page_data("flow")]))
    with Opened(browser, path) as opened:
        labels = "delegatePage.views[0].graph.root.children.map(c => c.label || c.name)"
        assert opened.run(labels) == ["input x", "cond", "true_graph_0"]
