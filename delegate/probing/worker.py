"""The process in which one plugin is asked one question: it prints the answer as JSON, and ends."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
from typing import Any

from delegate.backends.info import BackendInfo
from delegate.backends.state import HalfBroken, found, load_half, schema_of, to_json
from delegate.errors import BackendUnavailable
from delegate.plugins import Plugin, full_traceback, load_object


def main(question: str, limit: float, *plugin: str) -> None:
    """Answer; what else is printed goes to stderr.

    Args:
        question: "probe", or a half to import: "aot" or "runtime".
        limit: seconds until the process that asks ends this one.
        plugin: the fields of a Plugin.
    """
    answer = os.dup(1)
    os.dup2(2, 1)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is told by name, and its core is of no use
    faulthandler.enable()
    faulthandler.dump_traceback_later(0.9 * limit)  # where it hangs
    asked = Plugin(*plugin)
    said = to_json(found(asked)) if question == "probe" else _half(asked, question)
    with open(answer, "w", encoding="utf-8") as out:
        json.dump(said, out)
    os._exit(0)  # libraries get no chance to hang or crash in their own ends


def _half(plugin: Plugin, half: str) -> dict[str, Any]:
    """What is wrong with a half; of one to compile with, the JSON schema of its options."""
    try:
        info = load_object(plugin.value)
        assert isinstance(info, BackendInfo)
        made = load_half(info, half)
        return {"options": schema_of(made)} if half == "aot" else {}
    except BackendUnavailable as error:
        return {"absent": error.what, "remedy": error.remedy}
    except HalfBroken as error:
        return {"problem": error.problem, "traceback": full_traceback(error.__cause__)}
    except (Exception, SystemExit) as error:
        return {"problem": f"has options without a schema: {error}", "traceback": full_traceback(error)}
