"""Parts of pages that come from code. A line `<!-- generated: NAME -->` of a page stands for each.

The parts are made when the site is built and are not stored, so no part can be stale.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer.main
from delegate_devtools.ops import Catalogue, markdown
from pydantic import BaseModel

import delegate
from delegate import errors
from delegate.backend.deviations import Deviation
from delegate.backend.info import BackendInfo
from delegate.cli.app import app
from delegate.config import model as configuration
from delegate.registry import Registry

ROOT = Path(delegate.__file__).parent
MARKER = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)
BACKENDS = (
    "delegate.backends.xnnpack.info",
    "delegate_onnxruntime.webgpu.info",
    "delegate_cuda.info",
    "delegate_onnxruntime.dsp.info",
)


def filled(text: str) -> str:
    """Return the text of a page with its generated parts."""
    return MARKER.sub(lambda marker: PARTS[marker[1]](), text)


def contents(index: str) -> str:
    """Return the table of contents of an index page: the pages that it links to without an anchor."""
    pages = dict.fromkeys(re.findall(r"\]\(([\w./-]+)\.md\)", index))
    return "\n".join(("", "```{toctree}", ":hidden:", "", *pages, "```", ""))


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;") or " "


def cli() -> str:
    """Return a section for each command: its help, usage, arguments and options."""
    return "\n\n".join(_command(name, command) for name, command in commands())


def commands() -> Iterator[tuple[str, Any]]:
    """Yield the full name and the command object of every command, also of the installed packages of plugins/."""

    def inside(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
        for name in group.list_commands(None):
            command = group.get_command(None, name)
            if hasattr(command, "commands"):
                yield from inside(f"{prefix} {name}", command)
            else:
                yield f"{prefix} {name}", command

    return inside("delegate", typer.main.get_command(app))


def _command(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    words = (_metavar(p) if p.required else f"[{_metavar(p)}]" for p in arguments)
    usage = " ".join((name, *words, *(["[OPTIONS]"] if options else [])))
    parts = [f"## `{name}`", inspect.cleandoc(command.help or ""), f"```text\n{usage}\n```"]
    if arguments:
        parts.append(
            table(("argument", "meaning"), [(f"`{_metavar(p)}`", getattr(p, "help", "") or "") for p in arguments])
        )
    if options:
        parts.append(table(("option", "default", "meaning"), [_option(p) for p in options]))
    return "\n\n".join(parts)


def _metavar(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return f"{name}..." if parameter.nargs == -1 and "..." not in name else name


def _option(parameter: Any) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    plain = parameter.default is not None and not callable(parameter.default) and parameter.default not in ((), [], "")
    default = "required" if parameter.required else f"`{parameter.default}`" if plain else ""
    return names, "" if parameter.is_flag and default == "`False`" else default, parameter.help or ""


def yaml_keys() -> str:
    """Return a section for each mapping of the configuration, with its keys."""
    return "\n\n".join(
        f"## `{path}`\n\n{inspect.cleandoc(section.__doc__ or '')}\n\n{_fields(section)}" if path else _fields(section)
        for path, section in sections()
    )


def sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the path and the pydantic model of each mapping of a configuration, the whole file first."""

    def inside(path: str, section: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
        yield path, section
        for name, field in section.model_fields.items():
            for inner in _models(field.annotation):
                several = "[]" if "tuple" in str(field.annotation) else ""
                if inner.__name__ not in seen:
                    seen.add(inner.__name__)
                    yield from inside(f"{path}.{name}{several}".lstrip("."), inner)

    seen: set[str] = set()
    return inside("", configuration.Config)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models(argument)


def _fields(section: type[BaseModel]) -> str:
    schema = section.model_json_schema()
    rows = [
        (f"`{name}`", _values(facts), _default(facts, name in schema.get("required", ())), facts.get("description", ""))
        for name, facts in schema["properties"].items()
    ]
    return table(("key", "values", "default", "meaning"), rows)


def _values(facts: dict[str, Any]) -> str:
    """Return the values that a JSON schema permits, in words."""
    if "anyOf" in facts:
        return ", ".join(dict.fromkeys(_values(one) for one in facts["anyOf"]))
    if "enum" in facts:
        return ", ".join(f"`{value}`" for value in facts["enum"])
    if "$ref" in facts:
        return "mapping"
    kind = facts.get("type", "any")
    names = {"array": "list", "object": "mapping", "string": "text", "boolean": "`true`, `false`", "null": "`null`"}
    words = " or ".join(names.get(k, k) for k in ([kind] if isinstance(kind, str) else kind))
    limits = {"minimum": "at least", "exclusiveMinimum": "over", "maximum": "at most", "exclusiveMaximum": "below"}
    return ", ".join((words, *(f"{text} {facts[limit]}" for limit, text in limits.items() if limit in facts)))


def _default(facts: dict[str, Any], required: bool) -> str:
    value = facts.get("default")
    if required:
        return "required"
    words = {None: "", True: "`true`", False: "`false`"}
    if isinstance(value, dict | list):
        return "" if isinstance(value, dict) and value else "empty"
    return words[value] if value is None or isinstance(value, bool) else f"`{value}`"


def backend_options() -> str:
    """Return a section for each backend with a page of options, with its options in a configuration and at load."""
    return "\n\n".join(_backend(importlib.import_module(name).INFO) for name in BACKENDS)


def _backend(info: BackendInfo) -> str:
    parts = [f"## `{info.name}`", f"{info.description}.", _fields(_part(info.aot).Options)]
    names = ", ".join(f"`{name}` ({kind.__name__})" for name, kind in _part(info.runtime).load_options.items())
    return "\n\n".join([*parts, f"Options of `delegate.load`: {names}."] if names else parts)


def _part(path: str) -> Any:
    """Return the class of a part of a backend, from "module:Class"."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def known_differences() -> str:
    """Return a table for each installed backend whose library differs from torch."""
    head = ("operators", "inputs", "the library", "torch", "what `delegate` does")
    parts = []
    for name, backend in Catalogue(Registry()).backends.items():
        rows = [
            (
                ", ".join(f"`{o.removeprefix('aten.')}`" for o in d.operators) or "all",
                d.domain,
                d.behavior,
                d.torch,
                _handled(d),
            )
            for d in backend.deviations
        ]
        if rows:
            libraries = ", ".join(sorted({d.library for d in backend.deviations}))
            parts.append(f"## `{name}`\n\nSeen with {libraries}.\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def _handled(deviation: Deviation) -> str:
    return f"{deviation.handling}. {deviation.advice}".removesuffix(". ")


def error_classes() -> str:
    """Return a table of the error classes, each with its base and its meaning."""
    rows = [(f"`{c.__name__}`", f"`{c.__base__.__name__}`", _first_line(c)) for c in classes()]
    return table(("class", "base", "meaning"), rows)


def classes() -> list[type[Exception]]:
    """Return the error classes of the project, in the order of their definition."""
    return [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.DelegateError)]


def _first_line(documented: type) -> str:
    return (documented.__doc__ or "").split("\n")[0]


def error_messages() -> str:
    """Return a section for each error class, with its messages and remedies; `…` stands for a name or number."""
    found = messages()
    parts = []
    for kind in classes():
        rows = sorted({(what, remedy) for name, what, remedy in found if name == kind.__name__})
        if rows:
            cells = [(f"`{what.replace('`', chr(39))}`", remedy) for what, remedy in rows]
            parts.append(f"## {kind.__name__}\n\n{_first_line(kind)}\n\n{table(('message', 'remedy'), cells)}")
    return "\n\n".join(parts)


def messages() -> list[tuple[str, str, str]]:
    """Return the class, text and remedy of every error that the code raises with its own words and a remedy."""
    names = {kind.__name__ for kind in classes()}
    found = []
    for file in sorted(ROOT.rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in names and call.args:
                what = _text(call.args[0])
                remedy = next((_text(word.value) for word in call.keywords if word.arg == "remedy"), "")
                if len(re.findall(r"\w{3,}", what)) > 1 and re.search(r"\w{3,}", remedy):
                    found.append((call.func.id, what, remedy))
    return found


def _text(node: ast.expr) -> str:
    """Return the text of an expression, with `…` for each part that only the run knows."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "…"


def support_matrix() -> str:
    """Return what `delegate ops --markdown` prints after its title, with the built-in backends alone."""
    catalogue = Catalogue(Registry())
    builtin = {importlib.import_module(name).INFO.name for name in BACKENDS}
    facts = (catalogue.facts(name, expand=False) for name in catalogue.names())
    text = markdown([replace(f, backends={b: c for b, c in f.backends.items() if b in builtin}) for f in facts])
    return text.split("\n", 2)[2]


PARTS: dict[str, Callable[[], str]] = {
    "cli": cli,
    "yaml-keys": yaml_keys,
    "backend-options": backend_options,
    "known-differences": known_differences,
    "support-matrix": support_matrix,
    "error-classes": error_classes,
    "error-messages": error_messages,
}
