"""Completions through OpenAI's client, whole and as they come, compared with `delegate_llm` in this process."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import openai
import pytest
from delegate_llm import Chat, Model, Sampler, Text
from delegate_llm.runtime.adapter import Adapter
from delegate_llm.runtime.tokenizer import Tokenizer

from delegate.runtime.method import Method
from tests.support.language_models import save_model
from tests.support.silence import silence  # noqa: F401 - for every test here
from tests.support.zoo import libraries

from .conftest import HEADERS, TRACE, tracing

with libraries():
    from delegate_llm import Options, export, read

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture(scope="session")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small random language model whose tokens are bytes, with a chat format."""
    folder = save_model(tmp_path_factory.mktemp("language"))
    with libraries():
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
        options = Options(context=128, chunk=8, weights="float32", lora_rank=2, lora_targets="v_proj,o_proj")
        export(read(folder), folder / "lm.dlg", options)
    return folder / "lm.dlg"


@pytest.fixture(scope="session")
def adapter(language: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random adapter of that model."""
    folder = tmp_path_factory.mktemp("adapter")
    with libraries():
        import peft

        config = peft.LoraConfig(r=2, lora_alpha=16, target_modules=["v_proj", "o_proj"], init_lora_weights=False)
        peft.get_peft_model(read(language.parent).load(), config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model(language: Path) -> Any:
    return Model(language)


@pytest.fixture
def lm(serve: Any, language: Path) -> Any:
    return serve({"lm": language}, sessions=2)


def client(served: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none", max_retries=0)


def complete(
    model: Model,
    prompt: str | list[int],
    count: int,
    sampler: Sampler | None = None,
    adapter: Adapter | None = None,
) -> str:
    """Return the text after a prompt."""
    start = model.tokens(prompt) if isinstance(prompt, str) else prompt
    tokens = model.conversation(adapter=adapter).generate(start, count, sampler or Sampler())
    return "".join(Text(model.tokenizer).read(tokens))


def test_a_completion(lm: Any, model: Model) -> None:
    with client(lm) as api:
        assert [row.id for row in api.models.list()] == ["lm"]
        answer = api.completions.create(model="lm", prompt="Hello", max_tokens=12, temperature=0)
        again = api.completions.create(model="lm", prompt=model.tokens("Hello"), max_tokens=12, temperature=0)
        sampled, fewest = (
            api.completions.create(model="lm", prompt="Hello", max_tokens=12, seed=3, top_p=0.9, extra_body=more)
            for more in ({}, {"top_k": 2})
        )
    assert answer.choices[0].text == again.choices[0].text == complete(model, "Hello", 12)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 12, 17)
    assert sampled.choices[0].text == complete(model, "Hello", 12, Sampler(1.0, top_p=0.9, seed=3))
    assert fewest.choices[0].text == complete(model, "Hello", 12, Sampler(1.0, top_k=2, top_p=0.9, seed=3))


def test_an_adapter(serve: Any, language: Path, adapter: Path, model: Model) -> None:
    served = serve({"lm": language}, {"polite": adapter})
    with client(served) as api:
        assert [row.id for row in api.models.list()] == ["lm", "lm:polite"]
        plain, polite = (
            api.completions.create(model=name, prompt="Hello", max_tokens=12, temperature=0)
            for name in ("lm", "lm:polite")
        )
        with pytest.raises(openai.NotFoundError, match="no language model 'lm:rude'"):
            api.completions.create(model="lm:rude", prompt="Hello")
    assert (plain.model, polite.model) == ("lm", "lm:polite")
    assert plain.choices[0].text == complete(model, "Hello", 12)
    assert polite.choices[0].text == complete(model, "Hello", 12, adapter=model.load_adapter(adapter))
    assert polite.choices[0].text != plain.choices[0].text


def test_a_stream(lm: Any, model: Model) -> None:
    with client(lm) as api:
        usage = {"include_usage": True}
        parts = list(
            api.completions.create(
                model="lm", prompt="Hi", max_tokens=9, temperature=0, stream=True, stream_options=usage
            )
        )
    assert "".join(part.choices[0].text for part in parts[:-1]) == complete(model, "Hi", 9)
    assert parts[-2].choices[0].finish_reason == "length"
    assert parts[-1].usage.completion_tokens == 9
    assert len(parts) > 4


def test_a_chat(lm: Any, model: Model) -> None:
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
    with client(lm) as api:
        first = api.chat.completions.create(model="lm", messages=messages, max_tokens=8, temperature=0)
        answer = first.choices[0].message.content
        assert answer is not None
        parts = [{"type": "text", "text": "t"}, {"type": "text", "text": "wo"}]
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": parts}]
        stream = api.chat.completions.create(model="lm", messages=messages, max_tokens=8, temperature=0, stream=True)
        second = [part.choices[0] for part in stream]
    assert answer == "".join(Chat(model, Sampler(), system="Be brief.").send("one", 8))
    assert model.chat is not None
    text = model.chat.render("one", "Be brief.", True) + answer + model.chat.render("two", None, False)
    tokens = model.tokens(text, add_special_tokens=False)
    assert "".join(part.delta.content or "" for part in second) == complete(model, tokens, 8)
    assert second[0].delta.role == "assistant"
    assert second[-1].finish_reason == "length"


def test_stop_words(lm: Any, model: Model) -> None:
    whole = complete(model, "Hello", 40)
    word = whole[10:12]
    with client(lm) as api:
        answer = api.completions.create(model="lm", prompt="Hello", max_tokens=40, temperature=0, stop=[word])
    assert answer.choices[0].text == whole[: whole.index(word)]
    assert answer.choices[0].finish_reason == "stop"


def test_the_end_of_the_context(lm: Any) -> None:
    with client(lm) as api:
        answer = api.completions.create(model="lm", prompt="x" * 120, max_tokens=100, temperature=0)
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens <= 129


@pytest.mark.parametrize(
    ("path", "changed", "status", "message"),
    [
        ("completions", {"model": "absent"}, 404, "there is no language model 'absent'"),
        ("completions", {"model": 5}, 404, "there is no language model '5'"),
        ("completions", {"prompt": None}, 400, "the prompt should be a text"),
        ("completions", {"prompt": [1, 300]}, 400, "an array of tokens from 0 to 299"),
        ("completions", {"prompt": ""}, 400, "the prompt has 0 tokens: it must have 1 to 128"),
        ("completions", {"prompt": "x" * 129}, 400, "the prompt has 129 tokens: it must have 1 to 128"),
        ("completions", {"max_tokens": 0}, 400, "max_tokens should be a whole number from 1 on"),
        ("completions", {"temperature": -1}, 400, "temperature is -1: it must be 0 or more"),
        ("completions", {"temperature": "hot"}, 400, "'temperature' should be a number"),
        ("completions", {"top_p": 0}, 400, "top_p is 0"),
        ("completions", {"seed": 1.5}, 400, "'seed' should be a number"),
        ("completions", {"n": 2}, 400, "the parameter 'n' is not supported"),
        ("completions", {"n": True}, 400, "the parameter 'n' is not supported"),
        ("completions", {"logprobs": 5}, 400, "the parameter 'logprobs' is not supported"),
        ("completions", {"logprobs": 0}, 400, "the parameter 'logprobs' is not supported"),
        ("completions", {"min_p": 0.1}, 400, "the parameter 'min_p' is not supported"),
        ("completions", {"top_k": -1}, 400, "top_k is -1: it must be 0 or more"),
        ("completions", {"top_k": 2.5}, 400, "'top_k' should be a number"),
        ("completions", {"stream_options": True}, 400, "'stream_options' should be a JSON object"),
        ("completions", {"stream_options": {"include_usage": 1}}, 400, "'include_usage' should be true or false"),
        ("completions", {"stop": list("abcde")}, 400, "stop should be a text, or an array of up to 4"),
        ("chat/completions", {"messages": []}, 400, "the messages should be those of the user and the assistant"),
        ("chat/completions", {"messages": ["hi"]}, 400, "a message should be a JSON object"),
        ("chat/completions", {"messages": [{"role": "tool", "content": "x"}]}, 400, "a message should have a role"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "a text as"),
        ("chat/completions", {"messages": [{"role": "assistant", "content": "x"}]}, 400, "in turns"),
        ("chat/completions", {"tools": [{"type": "function"}]}, 400, "the parameter 'tools' is not supported"),
        ("chat/completions", {"tool_choice": "required"}, 400, "the parameter 'tool_choice' is not supported"),
        ("chat/completions", {"reasoning_effort": "low"}, 400, "the parameter 'reasoning_effort' is not supported"),
    ],
)
def test_wrong_requests(lm: Any, path: str, changed: Any, status: int, message: str) -> None:
    body = {"model": "lm", "prompt": "Hello", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    for stream in (False, True):
        reply = lm.request("POST", f"/v1/{path}", body | changed | {"stream": stream})
        assert reply.status == status
        assert message in reply.json["error"]["message"]
    reply = lm.request("POST", "/v1/completions", body | {"stream": "yes"})
    assert (reply.status, reply.json["error"]["message"]) == (400, "'stream' should be true or false")
    assert lm.request("POST", "/v1/completions", b"{").status == 400
    assert lm.request("GET", "/v1/completions").status == 405


def test_as_many_conversations_as_sessions(lm: Any) -> None:
    """A client that goes away ends its answer, and leaves its place to others."""
    with client(lm) as api:
        streams = [
            api.completions.create(model="lm", prompt="x", max_tokens=120, temperature=0, stream=True) for _ in range(2)
        ]
        language = lm.models.languages["lm"]
        if language.requests == 2:  # else one of them has ended already
            with pytest.raises(openai.RateLimitError, match="has 2 conversations"):
                api.completions.create(model="lm", prompt="x", max_tokens=2)
        for stream in streams:
            stream.close()
        deadline = monotonic() + 10
        while language.requests and monotonic() < deadline:
            sleep(0.01)
        assert api.completions.create(model="lm", prompt="x", max_tokens=2).choices[0].text is not None
    assert lm.metric('delegate_requests_total{model="lm",status="200"}') >= 1


class Chunks:
    """Holds up the first chunk of each prompt until it is opened, and counts all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self._open, run = 0, Event(), Method.__call__

        def call(method: Method, *args: Any) -> Any:
            if method.name in ("prefill", "decode"):
                self.count += 1
                assert self._open.wait(20)
            return run(method, *args)

        monkeypatch.setattr(Method, "__call__", call)
        self.open = self._open.set


@pytest.mark.parametrize("how", ["leaves", "leaves its stream", "is late"])
def test_a_prompt_that_nobody_waits_for_ends_with_its_chunk(
    serve: Any, language: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts until then, for the limit of conversations and as a metric."""
    served = serve({"lm": language}, sessions=2, timeout=0.5 if how == "is late" else 20.0)
    chunks, waiting = Chunks(monkeypatch), 'delegate_queue_requests{model="lm"}'
    body = {"model": "lm", "prompt": "x" * 120, "max_tokens": 4, "stream": how == "leaves its stream"}
    text = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    clients = []
    for number in range(2):
        clients.append(served.connect())
        clients[-1].sendall(head % len(text) + text)
        while chunks.count <= number:
            sleep(0.001)
    for client in clients:
        if how == "is late":
            assert client.recv(100).startswith(b"HTTP/1.1 504 ")
        client.close()
    deadline = monotonic() + 10
    status = 504 if how == "is late" else 499
    while served.metric(f'delegate_requests_total{{model="lm",status="{status}"}}') < 2:
        assert monotonic() < deadline
    assert served.metric(waiting) == 2
    assert served.request("POST", "/v1/completions", body).status == 429
    chunks.open()
    while served.metric(waiting):
        assert monotonic() < deadline
    assert chunks.count == 2
    assert served.request("POST", "/v1/completions", body).status == 200


def test_the_rest_of_a_text_that_is_too_long_is_not_read(lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, sizes = Tokenizer.encode, list[int]()
    monkeypatch.setattr(
        Tokenizer, "encode", lambda self, text, *args: sizes.append(len(text)) or encode(self, text, *args)
    )
    for size in (100, 2000, 3000, 100_000, 4_000_000):
        reply = lm.request("POST", "/v1/completions", {"model": "lm", "prompt": "x" * size, "max_tokens": 1})
        assert reply.status == (200 if size == 100 else 400)
        message = "it must have 1 to 128"
        assert size == 100 or message in reply.json["error"]["message"]
    assert sizes == [100, 2000, 2048, 2048, 2048]


def test_a_shutdown_ends_a_stream_with_an_error(serve: Any, language: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client must not take its start for the whole."""
    served, run = serve({"lm": language}, timeout=1.5), Method.__call__

    def call(method: Method, *args: Any) -> Any:
        sleep(0.1)
        return run(method, *args)

    monkeypatch.setattr(Method, "__call__", call)
    with client(served) as api:
        stream = api.completions.create(model="lm", prompt="x", max_tokens=120, temperature=0, stream=True)
        served.server.should_exit = True
        with pytest.raises(openai.APIError, match="the server shuts down: try another one"):
            list(stream)
    served._thread.join(20)
    assert served.server.unfinished == 1


def test_completions_have_spans(serve: Any, language: Path) -> None:
    """They belong to the trace of the client, and end with the answer: a stream may end with its client."""
    own, exporter = tracing()
    with client(serve({"lm": language}, tracing=own)) as api:
        traced = api.with_options(default_headers=HEADERS)
        traced.completions.create(model="lm", prompt="x", max_tokens=8, temperature=0)
        list(traced.completions.create(model="lm", prompt="x", max_tokens=8, temperature=0, stream=True))
        with pytest.raises(openai.BadRequestError):
            traced.completions.create(model="lm", prompt="")
        deadline = monotonic() + 20
        while not (found := exporter.get_finished_spans()) or status(found[-1]) != 499:
            assert monotonic() < deadline
            traced.completions.create(model="lm", prompt="x", max_tokens=120, temperature=0, stream=True).close()
            sleep(0.05)
    assert [status(span) for span in found[:3]] == [200, 200, 400]
    assert {span.name for span in found} == {"infer lm"}
    assert {f"{span.context.trace_id:032x}" for span in found if span.context} == {TRACE}


def status(span: Any) -> int:
    return int(span.attributes["http.response.status_code"])


def test_streams_of_clients_that_leave_have_a_status_of_their_own(lm: Any) -> None:
    deadline = monotonic() + 20
    with client(lm) as api:
        while not lm.metric('delegate_requests_total{model="lm",status="499"}'):  # a stream may end before its client
            assert monotonic() < deadline
            if lm.models.languages["lm"].requests == 0:
                api.completions.create(model="lm", prompt="x", max_tokens=120, temperature=0, stream=True).close()
