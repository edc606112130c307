"""From a chat template of a tokenizer to a `ChatFormat`: the fixed text around the messages."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from delegate.errors import ExportError
from delegate.llm.aot.hugging_face import transformers
from delegate.llm.runtime.chat import ChatFormat
from delegate.plugins import one_line

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
    config = _tokenizer_config(folder / "tokenizer_config.json")
    template = _template(folder / "chat_template.jinja", config)
    if template is None:
        return None
    special = {name: _text(value) for name, value in config.items() if name.endswith("_token")}
    try:
        chat_format = _derive(template, special)
    except Exception as error:  # errors of jinja and of the template itself
        remedy = "correct the template, or remove it and use `delegate llm run`"
        raise ExportError(f"its chat template fails: {one_line(error)}", where=str(folder), remedy=remedy) from error
    if chat_format is None:
        what = "the chat template puts text around messages that depends on them, so the program has no chat format"
        warnings.warn(f"{what} ({folder})", stacklevel=2)
    return chat_format


def _tokenizer_config(file: Path) -> Mapping[str, Any]:
    if not file.exists():
        return {}
    try:
        config = json.loads(file.read_text("utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it is not an object")
    except (ValueError, OSError) as error:
        raise ExportError("this is not a tokenizer configuration", where=str(file), remedy=str(error)) from error
    return config


def _template(file: Path, config: Mapping[str, Any]) -> str | None:
    if file.exists():
        return file.read_text("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {t["name"]: t["template"] for t in template}.get("default")
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
        parts = (text if i % 2 else chat_format.render(text, system, i == 0) for i, text in enumerate(texts))
        if "".join(parts) != render(texts, system):
            return None
    return chat_format
