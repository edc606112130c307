"""The process in which one plugin answers one question: it prints the answer as JSON, and ends."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
from typing import Any

from delegate.backends.info import BackendInfo
from delegate.backends.state import PartBroken, found, load_part, schema_of, to_json
from delegate.errors import BackendUnavailable
from delegate.plugins import Plugin, full_traceback, load_object


def main(question: str, limit: float, *fields: str) -> None:
    """Print the answer to stdout. Other output goes to stderr.

    Args:
        question: "probe", or a part to import: "aot" or "runtime".
        limit: seconds until the process that asks ends this one.
        fields: of a Plugin.
    """
    answer = os.dup(1)
    os.dup2(2, 1)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is reported by name; its core dump is of no use
    faulthandler.enable()
    faulthandler.dump_traceback_later(0.9 * limit)  # where it hangs
    plugin = Plugin(*fields)
    result = to_json(found(plugin)) if question == "probe" else _load_part(plugin, question)
    with open(answer, "w", encoding="utf-8") as out:
        json.dump(result, out)
    os._exit(0)  # libraries get no chance to hang or crash in their own ends


def _load_part(plugin: Plugin, name: str) -> dict[str, Any]:
    """Return the problem of a part; of an AOT part without one, the JSON schema of its options."""
    try:
        info = load_object(plugin.value)
        assert isinstance(info, BackendInfo)
        part = load_part(info, name)
        return {"options": schema_of(part)} if name == "aot" else {}
    except BackendUnavailable as error:
        return {"absent": error.what, "remedy": error.remedy}
    except PartBroken as error:
        return {"problem": error.problem, "traceback": full_traceback(error.__cause__)}
    except (Exception, SystemExit) as error:
        return {"problem": f"has options without a schema: {error}", "traceback": full_traceback(error)}
