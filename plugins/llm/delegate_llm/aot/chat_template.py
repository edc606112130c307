"""From a chat template of a tokenizer to a `ChatFormat`: the fixed text around the messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from delegate.common.field_checks import fault
from delegate.common.files import read_bytes
from delegate.common.user_warnings import warn_user
from delegate.errors import ExportError
from delegate.plugins import one_line
from delegate_llm.aot.hugging_face import transformers
from delegate_llm.runtime.about import ChatFormat

# Stand-ins for messages, to find them in a rendered template.
_SYSTEM, _USERS, _ANSWERS = "zqsystemqz", ("zquser0qz", "zquser1qz", "zquser2qz"), ("zqanswer0qz", "zqanswer1qz")


def read_chat_format(folder: Path) -> ChatFormat | None:
    """Return the chat format of a tokenizer's chat template, or None if the folder has no template.

    The format is compared with the template on chats of several messages. If they differ, warn and return None.

    Args:
        folder: has `chat_template.jinja`, or a template in `tokenizer_config.json`.

    Raises:
        ExportError: a file is not readable, or the template fails.
    """
    file = folder / "tokenizer_config.json"
    config = read_object(file, "this is not a tokenizer configuration") if file.exists() else {}
    template = _template(folder / "chat_template.jinja", config)
    if template is None:
        return None
    try:
        special = {name: _text(value) for name, value in config.items() if name.endswith("_token")}
        chat_format = _derive(template, special)
    except Exception as error:  # errors of jinja and of the template itself
        remedy = "correct the template, or remove it and use `delegate llm run`"
        raise ExportError(f"its chat template fails: {one_line(error)}", where=str(folder), remedy=remedy) from error
    if chat_format is None:
        what = "the chat template puts text around messages that depends on them, so the program has no chat format"
        warn_user(f"{what} ({folder})", UserWarning)
    return chat_format


def read_object(file: Path, what: str) -> dict[str, Any]:
    """Return the JSON object of a file; raise ExportError with the message `what` if it is none."""
    try:
        values = json.loads(read_bytes(file))
        if not isinstance(values, dict):
            raise ValueError("it is not an object")
    except (ValueError, OSError, RecursionError) as error:
        raise ExportError(what, where=str(file), remedy=fault(error)) from error
    return values


def _template(file: Path, config: Mapping[str, Any]) -> str | None:
    try:
        template = read_bytes(file).decode() if file.exists() else config.get("chat_template")
        if isinstance(template, list):  # several, by name
            template = {t["name"]: t["template"] for t in template}.get("default")
        if not isinstance(template, str | None):
            raise ValueError("it is not a text")
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise ExportError("this is not a chat template", where=str(file), remedy=fault(error)) from error
    return template


def _text(token: str | Mapping[str, str] | None) -> str | None:
    """Return the text of a special token of a tokenizer configuration."""
    return token.get("content") if isinstance(token, Mapping) else token


def _derive(template: str, special: Mapping[str, str | None]) -> ChatFormat | None:
    """Return the format that renders chats as the template does, or None if there is none."""

    def render(texts: Sequence[str], system: str | None = None) -> str:
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
        rendered, _ = transformers.utils.chat_template_utils.render_jinja_template(
            conversations=[messages], chat_template=template, add_generation_prompt=True, **special
        )
        return str(rendered[0])

    (first, second, third), (answer, other) = _USERS, _ANSWERS
    start, has_user, after_user = render([first]).partition(first)
    _, _, rest = render([first, answer, second]).partition(answer)
    after_answer, has_second, _ = rest.partition(second)
    if not (has_user and has_second):
        return None
    try:
        before_system, has_system, rest = render([first], _SYSTEM).partition(_SYSTEM)
    except Exception:  # such as Gemma's, which raises an error for a system message
        has_system = ""
    supports = bool(has_system)
    chat_format = ChatFormat(
        start=start,
        before_system=before_system if supports else None,
        after_system=rest.partition(first)[0] if supports else "",
        after_user=after_user,
        after_answer=after_answer,
        strips=f"\t{first}\t" not in render([f"\t{first}\t"]),  # fixed text has spaces more often than tabs
    )
    for system in (None, *([f"\t{_SYSTEM}\t"] if supports else [])):
        texts = [f"\t{first}\t", answer, second, other, third]
        if chat_format.render_all(texts, system) != render(texts, system):
            return None
    return chat_format
