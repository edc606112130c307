"""The README, docs/ and docstrings claim nothing stale that can be read: links, paths, commands, names, code."""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib
import inspect
import io
import re
import statistics
import subprocess
import sys
import tokenize
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from benchmarks import models
from benchmarks.results import Results
from delegate import errors
from delegate.cli.app import app
from delegate.config import load_config
from tests.support.sources import module_name

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WRITTEN_BY_READERS = {"tests/test_acme.py"}  # the tutorial has its reader write it

_LINK = re.compile(r"\]\(([\w./#:-]+)\)")
_PATH = re.compile(r"`((?:delegate|tests|docs|configs|examples|benchmarks|plugins|tools)/[\w./-]+)`")
_COMMAND = re.compile(r"(?:^    |`)delegate ([a-z][^`\n]*)", re.MULTILINE)
_FENCED = re.compile(r"^( *)```(?:sh|text)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def broken_links(page: Path) -> list[str]:
    found = []
    for link in _LINK.findall(page.read_text()):
        path, _, anchor = link.partition("#")
        target = page if not path else page.parent / path
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            found.append(link)
    return found


def missing_paths(text: str) -> list[str]:
    return [p for p in _PATH.findall(text) if p not in WRITTEN_BY_READERS and not (ROOT / p).exists()]


def unknown_commands(text: str) -> list[str]:
    """Return the `delegate ...` lines whose command or options the command line does not have."""
    found = []
    indented = _FENCED.sub(lambda block: re.sub(rf"^{block[1]}", "    ", block[2], flags=re.MULTILINE), text)
    for line in _COMMAND.findall(indented):
        words = line.split("  ")[0].split()
        command: Any = typer.main.get_command(app)
        while words and hasattr(command, "commands") and (inner := command.get_command(None, words[0])):
            command = inner
            words.pop(0)
        if hasattr(command, "commands"):
            if words and re.fullmatch(r"[a-z-]+", words[0]):
                found.append(line)
            continue
        known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help", "--debug"}
        found += [line] * (not known.issuperset(_OPTION.findall(" ".join(words))))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_and_commands_are_there(page: Path) -> None:
    for package in ("demo", "llm", "ray", "remote", "serve"):  # those with commands
        pytest.importorskip(f"delegate_{package}", reason="`make plugins` installs the packages of plugins/")
    text = page.read_text()
    assert (broken_links(page), missing_paths(text), unknown_commands(text)) == ([], [], [])


def missing_names(glossary: str) -> list[str]:
    """Return the modules, and the names "in" modules, of a glossary's last column that do not exist."""
    missing = []
    for cell in re.findall(r"\| ([^|]*) \|$", glossary, re.MULTILINE):
        for names, module in re.findall(r"((?:`\w+`(?:, | in ))*)`\.([\w.]+)`", cell):
            try:
                found = importlib.import_module(f"delegate.{module}")
            except ModuleNotFoundError:
                missing.append(module)
                continue
            missing += [f"{module}.{name}" for name in re.findall(r"\w+(?=`)", names) if not hasattr(found, name)]
    return missing


def test_the_glossary_names_what_exists() -> None:
    assert missing_names((ROOT / "docs" / "reference" / "glossary.md").read_text()) == []
    rows = "| a | b | `Plan`, `Gone` in `.partitioner.plan` |\n| a | b | `.gone` |\n| a | b | |\n"
    assert missing_names(rows) == ["partitioner.plan.Gone", "gone"]


def test_stale_claims_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title\n[a](#a-title) [b](#gone) [c](gone.md)\n")
    assert broken_links(page) == ["#gone", "gone.md"]
    assert missing_paths("`tests/gone.py` `tests/test_claims.py`") == ["tests/gone.py"]
    lines = "    delegate vanish x\n    delegate run FILE --vanish\n    delegate run FILE --profile"
    assert unknown_commands(lines) == ["vanish x", "run FILE --vanish"]
    assert unknown_commands("  ```sh\n  delegate vanish\n  ```\n") == ["vanish"]


_MODULE = re.compile(r"(?<![\w./-])(?:[\w-]+/)*\w+\.py\b")  # in a comment or docstring
EXAMPLES = {"model.py"}  # a file of a user


def missing_modules(file: Path, source: str) -> list[str]:
    """Return the files that comments and docstrings name, seen from a folder of the file, and that do not exist."""
    prose = (
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and '"""' in token.string)
    )
    named = {name for text in prose for name in _MODULE.findall(text)} - EXAMPLES
    roots = [folder for folder in file.parents if folder.is_relative_to(ROOT)]
    return sorted(n for n in named if not any((r / n).exists() for r in roots) and not [*file.parent.rglob(n)])


@pytest.mark.parametrize("folder", ["delegate", "benchmarks", "examples", "plugins"])
def test_comments_name_modules_that_exist(folder: str) -> None:
    stale = {str(f): missing_modules(f, f.read_text("utf-8")) for f in (ROOT / folder).rglob("*.py")}
    assert {file: names for file, names in stale.items() if names} == {}


def test_missing_modules_are_found() -> None:
    source = (
        '"""See gone.py, cli/app.py and delegate/cli/app.py."""\nx = "other.py"  # tests/gone.py, https://a.b/c.py\n'
    )
    assert missing_modules(ROOT / "delegate" / "compile.py", source) == ["gone.py", "tests/gone.py"]


DOCTESTS = [module_name(f) for f in sorted((ROOT / "delegate").rglob("*.py")) if ">>> " in f.read_text("utf-8")]


@pytest.mark.parametrize("name", DOCTESTS)
def test_examples_of_docstrings_print_what_they_state(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.attempted
    assert outcome.failed == 0


def test_no_page_installs_the_project_from_an_index() -> None:
    assert [p.name for p in PAGES if re.search(r"pip install '?delegate\b", p.read_text())] == []


_BLOCK = re.compile(r"^( *)```(python|yaml|toml)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_ERROR = re.compile(r"`([A-Z]\w*(?:Error|Failed|Unavailable|Broken|Incompatible|NotFound|Refused))`")
_VARIABLE = re.compile(r"\bDELEGATE_[A-Z_]+")
# Names of files in commands, and of a group of entry points.
FILES = {"delegate.lock", "delegate.schema.json", "delegate.commands"}
OTHER_FORMATS = ("# server.yaml", "# fleet.yaml", "# jobs.yaml")  # the tests of these plugins read them
UNKNOWN = object()  # of an attribute whose class nothing states
MADE = {"to_backend": "delegate.compiled.CompiledProgram", "load": "delegate.runtime.loaded.LoadedProgram"}


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of one language, without their indentation."""
    found = ((indent, body) for indent, kind, body in _BLOCK.findall(text) if kind == language)
    return [re.sub(rf"^{indent}", "", body, flags=re.MULTILINE) for indent, body in found]


def resolve(dotted: str) -> Any:
    """Return what a dotted name means, or UNKNOWN; raises AttributeError or ImportError if it means nothing."""
    first, *names = dotted.split(".")
    found: Any = importlib.import_module(first)
    for name in names:
        if found is UNKNOWN:
            return UNKNOWN
        if not hasattr(found, name) and inspect.ismodule(found):
            importlib.import_module(f"{found.__name__}.{name}")
        found = _of_instances(found, name) if isinstance(found, type) else getattr(found, name)
    return found


def _of_instances(owner: type, name: str) -> Any:
    """Return an attribute of a class, or the class of an attribute that its instances have."""
    found = inspect.getattr_static(owner, name, None)
    getter = getattr(found, "fget", getattr(found, "func", None))  # of a property, cached or not
    annotated = any(name in vars(c).get("__annotations__", {}) for c in owner.__mro__)
    if getter is None and not annotated:
        return UNKNOWN if f"self.{name}" in inspect.getsource(owner) else getattr(owner, name)
    try:
        hint = typing.get_type_hints(getter)["return"] if getter else typing.get_type_hints(owner)[name]
    except (KeyError, NameError):
        return UNKNOWN
    return hint if isinstance(hint, type) else UNKNOWN


def stale_code(code: str) -> list[str]:
    """Return the imports, attributes and keyword arguments of `delegate` that Python code has and the project lacks."""
    names, stale = {"delegate": "delegate", "to_backend": "delegate.to_backend"}, []
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "delegate":
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            made = ast.unparse(node.value.func).removeprefix("delegate.")
            names |= {node.targets[0].id: MADE[made]} if made in MADE else {}
    stale += [name for name in names.values() if not _exists(name)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and (dotted := _dotted(node, names)) and not _exists(dotted):
            stale.append(dotted)
        elif isinstance(node, ast.Call) and (dotted := _dotted(node.func, names)) and _exists(dotted):
            stale += [f"{dotted}({word})" for word in _unknown_keywords(resolve(dotted), node)]
    return stale


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """Return the full name of an attribute of something that is known; empty for anything else."""
    first, *rest = (ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else "").split(".")
    return ".".join((names[first], *rest)) if first in names and all(map(str.isidentifier, rest)) else ""


def _exists(dotted: str) -> bool:
    try:
        resolve(dotted)
    except (AttributeError, ImportError):
        return False
    return True


def _unknown_keywords(function: Any, call: ast.Call) -> Iterator[str]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        yield from (word.arg for word in call.keywords if word.arg is not None and word.arg not in parameters)


def inline_code(text: str) -> Iterator[str]:
    """Yield the code within sentences that calls the project's functions, or names its modules and attributes."""
    for code in _INLINE.findall(_BLOCK.sub("", text)):
        if (
            code not in FILES
            and not code.endswith(".default")
            and re.fullmatch(r"(?:delegate(?:\.\w+)+|to_backend)(?:\(.*\))?", code)
        ):
            yield code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_names_what_exists(page: Path) -> None:
    text = page.read_text()
    own = {code.split("\n")[0].removeprefix("# ") for code in blocks(text, "python")}  # modules that the page writes
    found = [stale for code in (*blocks(text, "python"), *inline_code(text)) for stale in stale_code(code)]
    assert [name for name in found if name not in own] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_yaml_is_a_configuration(page: Path, tmp_path: Path) -> None:
    for text in blocks(page.read_text(), "yaml"):
        if text.startswith(OTHER_FORMATS):
            continue
        (tmp_path / "page.yaml").write_text(text.replace("acme", "xnnpack"))  # which readers write
        load_config(tmp_path / "page.yaml")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_errors_and_entry_points_exist(page: Path) -> None:
    from delegate.backend import aot

    text = page.read_text()
    assert [name for name in _ERROR.findall(text) if not any(hasattr(m, name) for m in (errors, aot, builtins))] == []
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    declared = [tomllib.loads(block)["project"].get("entry-points", {}) for block in blocks(text, "toml")]
    assert {group for given in declared for group in given} <= groups.keys()


def test_environment_variables_are_read_and_documented() -> None:
    read = {name for file in (ROOT / "delegate").rglob("*.py") for name in _VARIABLE.findall(file.read_text())}
    documented = {name for page in PAGES for name in _VARIABLE.findall(page.read_text())}
    assert documented == read


def test_stale_code_is_found() -> None:
    assert stale_code("import delegate\ndelegate.vanish(1)") == ["delegate.vanish"]
    assert stale_code("from delegate.gone import x") == ["delegate.gone.x"]
    assert stale_code("from delegate.errors import Gone") == ["delegate.errors.Gone"]
    assert stale_code("to_backend(..., vanish=1, cache=False)") == ["delegate.to_backend(vanish)"]
    gone = ["delegate.compiled.CompiledProgram.vanish", "delegate.runtime.loaded.LoadedProgram.context(vanish)"]
    assert stale_code("p = delegate.to_backend(x)\np.report.summary\np.vanish") == gone[:1]
    assert stale_code("p = delegate.to_backend(x)\np.report.vanish") == [
        "delegate.compiled.CompiledProgram.report.vanish"
    ]
    assert stale_code("p = delegate.load(x)\np.context(vanish=1)") == gone[1:]
    assert list(inline_code("`delegate.load(..., isolate=True)` `delegate.lock` `load`")) == [
        "delegate.load(..., isolate=True)"
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda path: path.name)
def test_tables_are_those_that_a_benchmark_wrote(path: Path) -> None:
    page = (ROOT / "docs" / "explanation" / "benchmarks.md").read_text()
    results = Results.load(path)
    stated = (f"benchmarks/results/{path.name}", results.date, *results.machine.split(", "), *results.versions.values())
    assert [words for words in (*stated, results.command) if words not in page.replace("\n", " ")] == []
    assert [title for title, table in results.tables.items() if table.markdown() not in page] == []


def test_means_are_of_their_rows() -> None:
    """Each ratio is rounded to two digits, so the mean is known to 4 %."""
    results = Results.load(ROOT / "benchmarks" / "results" / "models.json")
    ratios = {title: cells for title, *cells in results.tables[models.RATIOS].rows}
    for title, group in (("CNNs", models.CNNS), ("transformers", models.TRANSFORMERS)):
        for column, mean in enumerate(ratios[f"geometric mean, {title}"]):
            found = statistics.geometric_mean(float(ratios[model][column]) for model in group)
            assert found == pytest.approx(float(mean), rel=0.04)


README = (ROOT / "README.md").read_text()


def test_the_ratios_of_the_readme_are_those_of_the_benchmark() -> None:
    table = Results.load(ROOT / "benchmarks" / "results" / "models.json").tables[models.RATIOS]
    titles = {"geometric mean, CNNs": f"{len(models.CNNS)} CNNs", "geometric mean, transformers": "5 transformers"}
    assert len(models.TRANSFORMERS) == 5
    rows = [[titles[title], *cells[:-1]] for title, *cells in table.rows if title in titles]  # without portable
    head = "| | torch | inductor | onnxruntime | openvino | executorch |\n|---|---|---|---|---|---|\n"
    assert table.columns[1:-1] == ["eager", "inductor", "onnxruntime", "openvino", "executorch"]
    assert head + "".join(f"| {' | '.join(row)} |\n" for row in rows) in README


def test_the_backends_of_the_readme_are_all_there_are() -> None:
    section = README.partition("## Backends")[2].partition("\n## ")[0]
    groups = [
        tomllib.loads(file.read_text())["project"].get("entry-points", {}).get("delegate.backends", {})
        for file in (ROOT / "pyproject.toml", *(ROOT / "plugins").glob("*/pyproject.toml"))
    ]
    declared = {name for group in groups for name in group} - {"gpu"}  # an alias
    assert set(re.findall(r"^\| \[?(\w+)", section, re.MULTILINE)) - {"backend"} == declared | {"portable"}


def test_the_pictures_of_the_readme_are_small() -> None:
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert pictures == ["docs/pictures/report-dark.png", "docs/pictures/report-light.png"]
    assert all(5_000 < (ROOT / picture).stat().st_size < 200_000 for picture in pictures)


def test_the_code_of_the_readme_runs_when_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block runs as it is; the second one in a process without torch, on the file that the first one wrote."""
    ahead, deployed, _ = blocks(README, "python")  # plugins/torch-compile runs the third one
    monkeypatch.chdir(tmp_path)
    exec(ahead, {})
    assert "forward: 1 partition on xnnpack" in capsys.readouterr().out
    no_torch = f"import sys; sys.modules['torch'] = None\n{deployed}"
    done = subprocess.run([sys.executable, "-c", no_torch], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "(1, 10)\n"), done.stderr
