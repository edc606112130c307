"""The structure of the code: imports go one way, and the tests mirror the packages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import delegate
import tests
from tests.support.sources import ROOT, module_name, modules

PRODUCT = Path(delegate.__file__).parent


def _imported(source: str) -> Iterator[str]:
    """Yield the names of imported modules and of what is imported from them, late imports included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_module_reaches_itself():
    files = {module_name(file): file for file in PRODUCT.rglob("*.py")}
    del files["delegate"]  # the public names, each imported when it is asked for
    graph = {name: set(_imported(file.read_text())) & files.keys() - {name} for name, file in files.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(files)  # a CycleError names a cycle


def test_no_two_classes_share_a_name() -> None:
    """Classes of the core, without the templates of `delegate new-backend` and without generated code."""
    places: dict[str, list[str]] = {}
    for file in PRODUCT.rglob("*.py"):
        if "skeleton" not in file.parts and not file.stem.endswith("_generated"):
            classes = (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef))
            for node in classes:
                places.setdefault(node.name, []).append(module_name(file))
    assert {name: own for name, own in places.items() if len(own) > 1 and not name.startswith("_")} == {}


def wrong_imports(sources: Mapping[str, str], known: set[str]) -> list[str]:
    """Return the imports of modules with tests, and of helpers that belong to the tests of another folder.

    Args:
        sources: the name of each module -> its source.
        known: the names of all modules of the tests.
    """
    return [
        f"{name} imports {other}"
        for name, source in sources.items()
        for other in sorted(set(_imported(source)) & known)
        if other.rpartition(".")[2].startswith("test_") or _folder(other) not in {"", "support", _folder(name)}
    ]


def _folder(module: str) -> str:
    """Return the folder of tests that a module is in, or "" for a module outside of these folders."""
    first, _, rest = module.partition(".")
    return rest.partition(".")[0] if first == "tests" and "." in rest else ""


def test_tests_share_helpers_in_support():
    files = [*modules(), *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    sources = {module_name(file): file.read_text("utf-8") for file in files}
    assert wrong_imports(sources, {name for name in sources if name.startswith("tests.")}) == []


@pytest.mark.parametrize(
    ("name", "line", "is_wrong"),
    [
        ("tests.a.test_a", "from tests.a.helper import x", False),
        ("tests.a.test_a", "from tests.support.helper import x", False),
        ("tests.a.test_a", "from tests.support import helper", False),
        ("tests.a.test_a", "from tests.a.test_b import x", True),
        ("tests.a.test_a", "from tests.a import test_b", True),
        ("tests.a.test_a", "def f():\n    from tests.b.helper import x", True),
        ("tests.support.helper", "from tests.a.helper import x", True),
        ("plugins.p.tests.test_a", "from tests.a.helper import x", True),
        ("plugins.p.tests.conftest", "import tests.conftest", False),
        ("tests.test_a", "import tests.test_b", True),
    ],
)
def test_wrong_imports_are_found(name, line, is_wrong):
    known = {
        "tests.conftest",
        "tests.test_b",
        "tests.a.helper",
        "tests.a.test_b",
        "tests.b.helper",
        "tests.support.helper",
    }
    assert bool(wrong_imports({name: line}, known)) == is_wrong


PRIVATE = Path("edge/torch_private.py")  # where the reason of each private name of torch stands
PUBLIC = {"_asdict", "_fields", "_exit", "_getframe"}  # of Python, whose underscores have other reasons
VENDORS = {"_interpreter"}  # LiteRT's


def private_names_of_torch(source: str, own: set[str]) -> list[str]:
    """Return the private names of torch that a module imports or reads.

    Args:
        source: the module's source.
        own: names that modules of this project define. Another private attribute of an object is taken for torch's.
    """
    names = [n for n in _imported(source) if n.startswith("torch.") and re.search(r"\._(?!_)", n)]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or not re.match("_(?!_)", node.attr):
            continue
        text = ast.unparse(node)
        if re.match(r"(self|cls|_?aten|torch\.ops\.\w+)\._\w+$", text):
            continue
        if text.startswith("torch.") or node.attr not in own | PUBLIC | VENDORS:
            names.append(text)
    return names


def _defined(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@pytest.mark.extended
def test_private_names_of_torch_are_in_one_module():
    """`kernels/aten` runs programs, so it may not import `edge`; it has its own."""
    files = [f for f in PRODUCT.rglob("*.py") if not f.is_relative_to(PRODUCT / "kernels" / "aten")]
    sources = {f.relative_to(PRODUCT): f.read_text("utf-8") for f in files}
    own = {name for path, source in sources.items() if path != PRIVATE for name in _defined(source)}
    assert private_names_of_torch(sources.pop(PRIVATE), own)
    wrong = {str(path): names for path, source in sources.items() if (names := private_names_of_torch(source, own))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from torch._ops import OpOverload", "torch._ops"),
        ("from torch.fx._symbolic_trace import _Patcher", "torch.fx._symbolic_trace"),
        ("import torch.utils._pytree as pytree", "torch.utils._pytree"),
        ("torch._C.DispatchKey", "torch._C"),
        ("target._schema.arguments", "target._schema"),
        ("torch.ops.aten._int_mm.default", None),
        ("from torch.fx import Graph", None),
        ("self._schema", None),
        ("own._known", None),
    ],
)
def test_private_names_of_torch_are_found(line, name):
    assert private_names_of_torch(line, {"_known"})[:1] == ([] if name is None else [name])


def test_folders_of_tests_mirror_the_packages():
    packages = {file.parent.name for file in PRODUCT.glob("*/__init__.py")}
    folders = {file.parent.name for file in (ROOT / "tests").glob("*/*.py")}
    others = re.findall(r"^(\w+): ", tests.__doc__ or "", re.MULTILINE)
    assert folders - packages == set(others)
