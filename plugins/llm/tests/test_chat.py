"""Chats: formats from chat templates render as transformers does, and answers equal eager's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from delegate_llm.runtime.chat import Chat
from delegate_llm.runtime.model import Model
from delegate_llm.runtime.sampling import Sampler

from delegate.errors import ExportError, InputError
from tests.support.language_models import eager, save_model, tokenizer
from tests.support.silence import silence  # noqa: F401 - for every test here
from tests.support.zoo import libraries

with libraries():
    import transformers
    from delegate_llm import Options, export
    from delegate_llm.aot.chat_template import read_chat_format
    from delegate_llm.aot.source import Source, read

TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "qwen2": "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "llama3": "{% for m in messages %}{{ bos_token if loop.first }}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "gemma": "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    "spaces": "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content | trim }} A:"
    "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
    "mistral": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
}
SPECIAL = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
CHANGING = {
    "numbered": "{% for m in messages %}{{ loop.index }}:{{ m.content }}\n{% endfor %}",
    "last only": "{{ messages[-1].content }}",
    "reversed": "{% for m in messages | reverse %}[{{ m.content }}]{% endfor %}",
}


def write_template(folder: Path, template: object) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **SPECIAL}))
    return folder


def render_by_transformers(template: str, messages: list[dict[str, str]]) -> str:
    """Return what transformers renders."""
    coder = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(), bos_token="<s>", eos_token="</s>", chat_template=template
    )
    return str(coder.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


@pytest.mark.parametrize("name", TEMPLATES)
def test_formats_render_as_transformers_does(name, tmp_path):
    chat_format = read_chat_format(write_template(tmp_path, TEMPLATES[name]))
    assert chat_format is not None
    assert chat_format.strips == (name in ("llama3", "gemma", "spaces"))
    assert (chat_format.before_system is None) == (name in ("gemma", "mistral", "spaces"))
    for system in (None, "Answer\nbriefly. "):
        if system and chat_format.before_system is None:
            with pytest.raises(InputError, match=r"no system message.*start of the first message"):
                chat_format.render("Hi", system, is_first=True)
            continue
        messages = [{"role": "system", "content": system}] if system else []
        text = ""
        for i, (question, answer) in enumerate([(" Hi ", "Hello."), ("{{ 7 }} <b>", "Yes."), ("Grüße\n", "")]):
            messages.append({"role": "user", "content": question})
            text += chat_format.render(question, system, i == 0)
            assert text == render_by_transformers(TEMPLATES[name], messages)
            messages.append({"role": "assistant", "content": answer})
            text += answer


def test_places_of_a_template(tmp_path):
    assert read_chat_format(tmp_path) is None
    named = [{"name": "tools", "template": "x"}, {"name": "default", "template": TEMPLATES["chatml"]}]
    assert read_chat_format(write_template(tmp_path, named)).start == "<|im_start|>user\n"
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES["mistral"])
    assert read_chat_format(tmp_path).start == "<s>[INST] "


@pytest.mark.parametrize("name", CHANGING)
def test_templates_that_depend_on_the_messages_are_left_out(name, tmp_path):
    with pytest.warns(UserWarning, match="so the program has no chat format"):
        assert read_chat_format(write_template(tmp_path, CHANGING[name])) is None


@pytest.mark.parametrize(
    ("template", "match"),
    [
        ("{% for %}", "its chat template fails: TemplateSyntaxError"),
        ("{{ raise_exception('never') }}", "its chat template fails: .*never"),
        ("{{ messages[0].content.nothing.more }}", "its chat template fails: UndefinedError"),
    ],
)
def test_templates_that_fail(template, match, tmp_path):
    with pytest.raises(ExportError, match=match):
        read_chat_format(write_template(tmp_path, template))


def test_a_tokenizer_configuration_that_is_damaged(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ExportError, match="not a tokenizer configuration"):
        read_chat_format(tmp_path)


@pytest.fixture(scope="module")
def chatting(tmp_path_factory) -> tuple[Source, Path]:
    folder = write_template(save_model(tmp_path_factory.mktemp("chatting")), TEMPLATES["mistral"])
    with libraries():
        source = read(folder)
        export(source, folder / "model.dlg", Options(context=120, chunk=16, weights="float32"))
    return source, folder / "model.dlg"


def test_answers_are_those_of_eager(chatting):
    source, path = chatting
    model, coder = Model(path), tokenizer()
    chat = Chat(model, Sampler())
    tokens: list[int] = []
    for before, message in (("<s>[INST] ", "Hi"), ("</s>[INST] ", "And you?")):
        tokens += coder.encode(f"{before}{message} [/INST]").ids
        expected = eager(source, tokens, 10)
        assert "".join(chat.send(message, 10)) == coder.decode(expected)
        tokens += expected


def test_a_message_that_does_not_fit_changes_nothing(chatting):
    model = Model(chatting[1])
    chats = [Chat(model, Sampler()) for _ in range(2)]
    answers = [["".join(chat.send("Hi", 5))] for chat in chats]
    with pytest.raises(InputError, match="do not fit into a context of 120"):
        "".join(chats[0].send("x" * 200, 5))
    for chat, answer in zip(chats, answers, strict=True):
        answer.append("".join(chat.send("So?", 5)))
    assert answers[0] == answers[1]


def test_a_program_without_a_chat_format(chatting):
    model = Model(chatting[1])
    model.chat = None
    with pytest.raises(InputError, match=r"no chat format.*folder with a chat template.*delegate llm run"):
        Chat(model, Sampler())
    with pytest.raises(InputError, match="no system message"):
        Chat(Model(chatting[1]), Sampler(), system="Be brief.")


def test_the_command(chatting):
    source, path = chatting
    expected = tokenizer().decode(eager(source, tokenizer().encode("<s>[INST] Hi [/INST]").ids, 6))
    command = [sys.executable, "-m", "delegate", "llm", "chat", str(path), "--count", "6"]
    done = subprocess.run(command, input="Hi\n\n", capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, expected + "\n"), done.stderr
