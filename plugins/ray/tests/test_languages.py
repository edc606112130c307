"""Language models on replicas, through OpenAI's client: answers, streams, and replicas that die in an answer."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import openai
import pytest
from delegate_llm import Model, Sampler, Text

from tests.support.language_models import configuration, tokenizer
from tests.support.silence import silence  # noqa: F401 - for every test here
from tests.support.zoo import libraries

from .conftest import metrics

with libraries():
    from delegate_llm import Options, export, read

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of pydantic in Ray Serve
    pytest.importorskip("ray.serve")
    import ray
    from delegate_serve.runtime.fleet import Fleet
    from ray import serve as ray_serve
from delegate_serve.runtime import remote_models
from delegate_serve.runtime.settings import ModelFile, Replicas, Settings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of Ray's own threads and sockets
TOKENS = 600
CLIENTS = 7


def test_replicas_that_die_in_an_answer(connected: None, tmp_path: Path) -> None:
    """A whole answer comes from another replica, while a stream ends with an error, and never as if it were complete.

    More clients than conversations wait, and get no error.
    """
    model, tokens = export_language_model(tmp_path)
    text = Text(model.tokenizer)
    expected = "".join([*map(text.add, generate(model, tokens)), text.finish()])
    file = ModelFile(tmp_path / "model.dlg", Settings(sessions=2), replicas=Replicas(min=2, max=2))
    with Fleet({"lm": file}, Settings(), None, "127.0.0.1", 0, None) as fleet, ThreadPoolExecutor(CLIENTS) as pool:
        fleet.deploy()
        api = openai.OpenAI(base_url=f"http://127.0.0.1:{fleet.port}/v1", api_key="none", max_retries=0)
        ended = Event()

        def ask(is_stream: bool) -> list[str]:
            answers = []
            while not ended.is_set():
                request = {"model": "lm", "prompt": tokens, "max_tokens": TOKENS, "temperature": 0}
                try:
                    if is_stream:
                        parts = api.completions.create(**request, stream=True)
                        answers.append("".join(part.choices[0].text for part in parts))
                    else:
                        answers.append(api.completions.create(**request).choices[0].text)
                except openai.APIError as error:
                    answers.append(f"{'stream' if is_stream else 'whole'}: {error.message}")
            return answers

        clients = [pool.submit(ask, number % 2 == 0) for number in range(CLIENTS)]
        for _ in range(2):
            sleep(2)
            for actor in replicas()[:1]:
                ray.kill(actor)
        sleep(4)
        ended.set()
        whole = [answer for client in clients for answer in client.result()]
    assert set(whole) <= {expected, "stream: the replica of language model 'lm' ended during the answer: try again"}
    assert whole.count(expected) > len(whole) / 2


def test_clients_that_leave(connected: None, tmp_path: Path) -> None:
    """An answer that nobody reads ends. The only conversation is free for others then, who get their whole answer."""
    _, tokens = export_language_model(tmp_path, hidden_size=384, intermediate_size=1024, num_hidden_layers=8)
    file = ModelFile(tmp_path / "model.dlg", Settings(sessions=1))
    with Fleet({"lm": file}, Settings(), None, "127.0.0.1", 0, None) as fleet:
        fleet.deploy()
        api = openai.OpenAI(base_url=f"http://127.0.0.1:{fleet.port}/v1", api_key="none", max_retries=0)
        request = {"model": "lm", "prompt": tokens, "max_tokens": TOKENS, "temperature": 0}
        whole, seconds = time_call(lambda: api.completions.create(**request).choices[0].text)

        def leave(is_stream: bool) -> None:
            if is_stream:
                with api.completions.create(**request, stream=True) as parts:
                    next(iter(parts))
            else:
                with pytest.raises(openai.APITimeoutError):
                    api.with_options(timeout=seconds / 10).completions.create(**request)

        def when_free(ask: Callable[[], Any]) -> Any:
            """Ask until the conversation of the client before is free, which it is with its next token."""
            while True:
                with suppress(openai.RateLimitError):
                    return ask()
                sleep(0.01)

        def leave_and_ask() -> str:
            for is_stream in (False, True, False, True):
                when_free(partial(leave, is_stream))
            return str(when_free(lambda: api.completions.create(**request).choices[0].text))

        answer, total = time_call(leave_and_ask)
        assert answer == whole
        assert total < 3 * seconds  # five whole answers without an end of the four


def test_adapters(connected: None, tmp_path: Path) -> None:
    """They are names of one program, and so they are in the metrics."""
    model, tokens = export_language_model(tmp_path, Options(lora_rank=2, lora_targets="v_proj,o_proj"))
    with libraries():
        import peft

        config = peft.LoraConfig(r=2, lora_alpha=16, target_modules=["v_proj", "o_proj"], init_lora_weights=False)
        peft.get_peft_model(read(tmp_path).load(), config).save_pretrained(tmp_path / "adapter")
    adapter = model.load_adapter(tmp_path / "adapter")
    file = ModelFile(tmp_path / "model.dlg", adapters={"other": tmp_path / "adapter"})
    with Fleet({"lm": file}, Settings(), None, "127.0.0.1", 0, None) as fleet:
        fleet.deploy()
        api = openai.OpenAI(base_url=f"http://127.0.0.1:{fleet.port}/v1", api_key="none", max_retries=0)
        for name, chosen in (("lm", None), ("lm:other", adapter)):
            text = Text(model.tokenizer)
            found = [*model.conversation(adapter=chosen).generate(tokens, 12, Sampler())]
            expected = "".join([*map(text.add, found), text.finish()])
            answer = api.completions.create(model=name, prompt=tokens, max_tokens=12, temperature=0)
            assert answer.choices[0].text == expected
        lines = metrics(fleet.port).splitlines()
    counts = [line for line in lines if line.startswith("delegate_requests_total")]
    assert counts == ['delegate_requests_total{model="lm",status="200"} 2.0']


def time_call(function: Callable[[], str]) -> tuple[str, float]:
    """Return a result, and the seconds of the call."""
    start = monotonic()
    return function(), monotonic() - start


@ray_serve.deployment
class Slow:
    """Takes longer than the limit for its first part, after it has begun."""

    async def complete(self, file: str) -> AsyncGenerator[object, None]:
        yield None
        await asyncio.sleep(2)
        yield file


def test_a_long_answer(connected: None) -> None:
    """The limit is for the begin of an answer. The replica has one for each token."""

    async def answer() -> object:
        handle = remote_models.Handle(running, "slow", "text", 1 - remote_models.MARGIN)
        return (await handle.stream("complete"))[0]

    running = ray_serve.run(Slow.bind())
    try:
        assert asyncio.run(answer()) == "text"
    finally:
        ray_serve.shutdown()


def export_language_model(folder: Path, options: Options | None = None, **changes: object) -> tuple[Model, list[int]]:
    """Return a small language model, saved as `model.dlg`, and a prompt with a long answer."""
    tokenizer().save(str(folder / "tokenizer.json"))
    with libraries():
        read(configuration(folder, "llama", max_position_embeddings=1024, **changes)).load().save_pretrained(folder)
        export(
            read(folder), folder / "model.dlg", replace(options or Options(), context=1024, chunk=8, weights="float32")
        )
    model = Model(folder / "model.dlg")
    return model, next(t for t in ([*b"d"], [*b"q"], [*b"z"]) if len(list(generate(model, t))) > TOKENS // 4)


def generate(model: Model, tokens: list[int]) -> Iterator[int]:
    yield from model.conversation().generate(tokens, TOKENS, Sampler())


def replicas() -> list[object]:
    names = [row["name"] for row in ray.util.list_named_actors(all_namespaces=True)]
    return [ray.get_actor(name, namespace="serve") for name in names if "#lm#" in name]
