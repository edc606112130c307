"""The process in which one plugin answers one question: it prints the answer as JSON, and ends."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
from typing import Any

from delegate.backends.info import BackendInfo
from delegate.backends.state import found, load_part, schema_of, to_json
from delegate.errors import BackendUnavailable
from delegate.plugins import Plugin, UnusablePlugin, full_traceback, load_object, one_line


def main(question: str, limit: float, *fields: str) -> None:
    """Print the answer to stdout. Other output goes to stderr.

    Args:
        question: "probe", "use", or a part to import: "aot" or "runtime".
        limit: seconds until the process that asks ends this one.
        fields: The fields of a Plugin.
    """
    answer = os.dup(1)
    os.dup2(2, 1)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is reported by name; its core dump is of no use
    faulthandler.enable()
    if question == "use":
        load_object("delegate.backends.aot:Backend")  # torch, whose time is not the plugin's
        os.write(answer, b" ")
    faulthandler.dump_traceback_later(0.9 * limit)  # where it hangs
    plugin = Plugin(*fields)
    result = to_json(found(plugin)) if question == "probe" else _answered(plugin, question)
    with open(answer, "w", encoding="utf-8") as out:
        json.dump(result, out)
    os._exit(0)  # libraries get no chance to hang or crash in their own ends


def _answered(plugin: Plugin, question: str) -> dict[str, Any]:
    """Return the answer to a question about parts, or the problem of a part."""
    try:
        info = load_object(plugin.value)
        assert isinstance(info, BackendInfo)
        return _use(info) if question == "use" else _load_part(info, question)
    except BackendUnavailable as error:
        return {"absent": error.what, "remedy": error.remedy}
    except UnusablePlugin as error:
        return {"problem": error.problem, "traceback": full_traceback(error.__cause__)}
    except (Exception, SystemExit) as error:
        what = "fails with its default options" if question == "use" else "has options without a schema"
        return {"problem": f"{what}: {one_line(error)}", "traceback": full_traceback(error)}


def _load_part(info: BackendInfo, name: str) -> dict[str, Any]:
    """Import a part; return the JSON schema of an AOT part's options."""
    part = load_part(info, name)
    return {"options": schema_of(part)} if name == "aot" else {}


def _use(info: BackendInfo) -> dict[str, Any]:
    """Import both parts, create them, and read what lowering reads of the AOT part before it has a graph."""
    aot: Any = load_part(info, "aot")
    schema_of(aot)
    part = aot(aot.Options())
    _ = part.preserve_ops, part.most_constants, part.check_uses_library, part.cache_key(), part.quantization()
    load_part(info, "runtime")()
    return {}
