"""Completions of language models in the form of OpenAI's API, complete or as they come.

https://platform.openai.com/docs/api-reference describes the paths `/v1/models`, `/v1/completions` and
`/v1/chat/completions`. Each request has a conversation of its own, so requests share no states.
"""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, aclosing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from delegate.errors import ConfigError, DelegateError, InputError
from delegate.runtime.loaded import LoadedProgram
from delegate_serve.runtime.errors import Disconnected, RequestError
from delegate_serve.runtime.metrics import Metrics, ModelMetrics
from delegate_serve.runtime.settings import Settings

if TYPE_CHECKING:
    from delegate_llm.runtime.adapter import Adapter
    from delegate_llm.runtime.sampling import Sampler

METHODS = frozenset({"prefill", "decode", "head", "about", "tokenizer"})  # of a language model with text
_DONE = b"data: [DONE]\n\n"
_DEFAULT_COUNT = 16  # tokens of a completion, as in OpenAI's API
_MOST_STOPS = 4
_CHARACTERS = 16  # of a text for each token of the context, from which on its start is read before the rest
_NEUTRAL: dict[str, tuple[Any, ...]] = {  # parameter that is not supported -> the values that change nothing
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "logprobs": (None, False),  # 0 requests the logarithm of each token's probability
    "top_logprobs": (None, 0),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "response_format": (None, {"type": "text"}),
}
_NUMBERS = {"temperature": (int, float), "top_p": (int, float), "top_k": (int,), "seed": (int,)}
_PARAMETERS = frozenset(
    {
        "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "stop", "stream", "stream_options",
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "parallel_tool_calls",
    }
).union(_NEUTRAL, _NUMBERS)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Completion:
    """A checked request.

    Args:
        name: the name of the model, perhaps with an adapter.
        adapter: changes the model for this request.
        tokens: the prompt.
        count: the maximum number of tokens in the answer.
        sampler: chooses the tokens.
        stops: words that end the answer.
        is_chat: the request is a chat.
        is_stream: the answer is sent as it comes.
        has_usage: the numbers of tokens end a stream.
    """

    name: str
    adapter: Adapter | None
    tokens: list[int]
    count: int
    sampler: Sampler
    stops: tuple[str, ...]
    is_chat: bool
    is_stream: bool
    has_usage: bool


@dataclass(frozen=True, slots=True)
class _End:
    """The end of an answer: its reason in the words of the API, and the number of tokens."""

    reason: str
    count: int


class Language(Protocol):
    """A language model, wherever it runs; `LanguageModel` describes the methods."""

    metrics: ModelMetrics

    def request(self) -> AbstractContextManager[None]:
        """Keep the model open for a request."""

    async def check(self, body: Mapping[str, Any], is_chat: bool) -> Any:
        """Return the request of a body."""

    async def answer(self, request: Any) -> tuple[bytes, AsyncGenerator[bytes, None] | None]:
        """Return the complete answer as JSON, or the first part of a stream and the others."""


class LanguageModel:
    """A language model of a server.

    Args:
        name: The program's name.
        program: with the methods of `delegate llm export`.
        settings: the limits; as many conversations run at once as there may be sessions.
        metrics: The server's metrics.
        adapters: the folders of LoRA adapters by name.

    Attributes:
        adapters: the adapter of each model that a request may name: NAME has none, NAME:ADAPTER has one.

    Raises:
        ConfigError: the package delegate_llm is not installed.
        ProgramError: the program describes no language model, or its tokenizer is damaged.
        InputError: an adapter does not fit.
    """

    def __init__(
        self,
        name: str,
        program: LoadedProgram,
        settings: Settings,
        metrics: Metrics,
        adapters: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        try:
            from delegate_llm.runtime.model import Model
        except ModuleNotFoundError as error:
            remedy = "pip install delegate-llm"
            raise ConfigError(
                f"program {name!r} is a language model, which needs {error.name}", remedy=remedy
            ) from error
        self.name, self._settings = name, settings
        try:
            self._model = Model(program)
            self._model.tokens("")  # raises now if the tokenizer is damaged
        except DelegateError as error:
            raise error.at(f"program {name!r}") from error
        self.adapters: dict[str, Adapter | None] = {name: None}
        self.adapters |= {f"{name}:{key}": self._model.load_adapter(folder) for key, folder in adapters.items()}
        self._threads = ThreadPoolExecutor(settings.sessions, f"generate {name}")
        self.requests = 0  # that are received, have an answer that is not complete, or are still computed
        self.metrics = metrics.model(name, lambda: self.requests)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Keep the model open for a request.

        Raises:
            RequestError: as many conversations run as may run at once.
        """
        if self.requests >= self._settings.sessions:
            what = f"language model {self.name!r} has {self.requests} conversations"
            raise RequestError(429, f"{what}: try again in 1 s", retry_after=1)
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    def close(self) -> None:
        """End the threads, after the running conversations."""
        self._threads.shutdown()

    async def check(self, body: Mapping[str, Any], is_chat: bool) -> Completion:
        """Return the request of a body; raise RequestError if it is wrong, or needs what the model does not have."""
        checked = self._start(self._check, body, is_chat)
        try:
            return await asyncio.shield(checked)
        finally:
            self._count_until_end(checked)

    def _check(self, body: Mapping[str, Any], is_chat: bool) -> Completion:
        for name, value in body.items():
            if value is not None and not (name in _PARAMETERS and _is_neutral(value, _NEUTRAL.get(name, (value,)))):
                raise RequestError(400, f"the parameter {name!r} is not supported")
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise RequestError(400, "'stream_options' should be a JSON object")
        tokens = self._chat_tokens(body.get("messages")) if is_chat else self._prompt_tokens(body.get("prompt"))
        room = int(self._model.about["context"]) - len(tokens)
        if room < 0 or not tokens:
            what = f"the prompt has {len(tokens)} tokens"
            raise RequestError(400, f"{what}: it must have 1 to {self._model.about['context']}")
        limit = body.get("max_completion_tokens") if is_chat else None
        limit = body.get("max_tokens") if limit is None else limit
        default = max(room, 1) if is_chat else _DEFAULT_COUNT
        return Completion(
            body["model"],
            self.adapters[body["model"]],
            tokens,
            default if limit is None else _whole(limit, "max_tokens"),
            self._sampler(body),
            _stops(body.get("stop")),
            is_chat,
            _flag(body, "stream"),
            _flag(options, "include_usage"),
        )

    def _sampler(self, body: Mapping[str, Any]) -> Sampler:
        from delegate_llm.runtime.sampling import Sampler

        given = {name: body[name] for name in _NUMBERS if body.get(name) is not None}
        for name, value in given.items():
            if type(value) not in _NUMBERS[name]:
                raise RequestError(400, f"{name!r} should be a number")
        try:
            return Sampler(**{"temperature": 1.0, **given})
        except InputError as error:
            raise RequestError(400, str(error)) from error

    def _prompt_tokens(self, prompt: Any) -> list[int]:
        """Return the tokens of a text, or these tokens."""
        if isinstance(prompt, str):
            return self._tokens(prompt)
        vocabulary = self._model.about["vocabulary"]
        if isinstance(prompt, list) and all(type(token) is int and 0 <= token < vocabulary for token in prompt):
            return prompt
        raise RequestError(400, f"the prompt should be a text, or an array of tokens from 0 to {vocabulary - 1}")

    def _chat_tokens(self, messages: Any) -> list[int]:
        """Return the tokens of messages: perhaps one of the system, then of the user and the assistant in turns."""
        if self._model.chat is None:
            raise RequestError(400, f"language model {self.name!r} has no chat format: use /v1/completions")
        texts = [_message(message) for message in messages] if isinstance(messages, list) else []
        system = texts.pop(0)[1] if texts and texts[0][0] == "system" else None
        if [role for role, _ in texts] != (["user", "assistant"] * len(texts))[: len(texts)] or len(texts) % 2 == 0:
            what = "the messages should be those of the user and the assistant in turns, and end with the user's"
            raise RequestError(400, f"{what}; one of the system may come first")
        try:
            rendered = self._model.chat.render_all([text for _, text in texts], system)
        except InputError as error:
            raise RequestError(400, str(error)) from error
        return self._tokens(rendered, add_special_tokens=False)

    def _tokens(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text, without reading the rest if the start of a long text has too many by far."""
        context = int(self._model.about["context"])
        size = _CHARACTERS * context
        try:
            while size < len(text):
                count = len(self._model.tokens(text[:size], add_special_tokens))
                if count > 2 * context:
                    raise RequestError(400, f"the prompt has more than {context} tokens: it must have 1 to {context}")
                size *= 2
            return self._model.tokens(text, add_special_tokens)
        except InputError as error:  # the tokenizer fails on this text
            raise RequestError(400, str(error)) from error

    async def answer(self, request: Completion) -> tuple[bytes, AsyncGenerator[bytes, None] | None]:
        """Return the complete answer as JSON, or the first part of a stream and the others.

        The computation ends with the next chunk of the prompt or the next token if this task is cancelled, its time is
        over, or the stream is closed.

        Args:
            request: a checked request.

        Raises:
            RequestError: the answer fails before it begins, or the next token takes longer than the limit.
        """
        parts = self._parts(request)
        form = _Form(request)
        if request.is_stream:
            stream = self._stream(form, parts)
            return await anext(stream), stream
        texts, end = [], _End("stop", 0)
        async for part in parts:
            if isinstance(part, _End):
                end = part
            else:
                texts.append(part)
        return form.complete("".join(texts), end), None

    async def _stream(self, form: _Form, parts: AsyncGenerator[str | _End, None]) -> AsyncGenerator[bytes, None]:
        async with aclosing(parts):
            yield form.begin() + form.part(await anext(parts))  # an error has a status only before the stream begins
            try:
                async for part in parts:
                    yield form.part(part)
            except RequestError as error:
                yield error_event(error.message)
        yield _DONE

    async def _parts(self, request: Completion) -> AsyncGenerator[str | _End, None]:
        """Yield the parts of an answer that another thread generates, and its end."""
        is_gone = Event()
        queue: asyncio.Queue[str | asyncio.Future[_End]] = asyncio.Queue()
        put = functools.partial(_tell, asyncio.get_running_loop(), queue.put_nowait)
        answer = self._start(self._generate, request, put, is_gone)
        answer.add_done_callback(queue.put_nowait)
        try:
            while isinstance(part := await asyncio.wait_for(queue.get(), self._settings.timeout), str):
                yield part
        except TimeoutError as error:
            what = f"language model {self.name!r} gave no token within {self._settings.timeout:g} s"
            raise RequestError(504, what) from error
        finally:
            is_gone.set()  # nobody reads what is still generated
            self._count_until_end(answer)
        yield self._end_of(answer)

    def _end_of(self, answer: asyncio.Future[_End]) -> _End:
        """Return the end of an answer; raise RequestError if it has failed."""
        error = answer.exception()
        if error is None:
            return answer.result()
        if isinstance(error, InputError):
            raise RequestError(400, str(error)) from error
        text = str(error) if isinstance(error, DelegateError) else type(error).__name__
        raise RequestError(500, f"language model {self.name!r} failed: {text}") from error

    def _start(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a function in a thread, and return the future of its result."""
        loop = asyncio.get_running_loop()
        result = loop.create_future()
        result.add_done_callback(asyncio.Future.exception)  # else the loop logs it if nobody waits any more

        def run() -> None:
            try:
                _tell(loop, result.set_result, function(*args))
            except Exception as error:
                _tell(loop, result.set_exception, error)

        self._threads.submit(run)
        return result

    def _count_until_end(self, work: asyncio.Future[Any]) -> None:
        """Count the work of a request that ends before it, because its client has left or its time is over."""
        if not work.done():
            self.requests += 1
            work.add_done_callback(self._forget)

    def _forget(self, _: asyncio.Future[Any]) -> None:
        self.requests -= 1

    def _generate(self, request: Completion, put: Callable[[str], None], is_gone: Event) -> _End:
        """Generate an answer in a conversation of its own."""
        from delegate_llm.runtime.tokenizer import Text

        def require_client() -> None:
            if is_gone.is_set():
                raise Disconnected

        require_client()
        conversation = self._model.conversation(adapter=request.adapter)
        try:
            text, count, reason = Text(self._model.tokenizer, request.stops), 0, "length"
            for token in conversation.generate(
                request.tokens, request.count, request.sampler, before_chunk=require_client
            ):
                count += 1
                if part := text.add(token):
                    put(part)
                if text.stopped:
                    break
            if text.stopped or (count < request.count and conversation.remaining):
                reason = "stop"
            if part := text.finish():
                put(part)
            return _End(reason, count)
        finally:
            conversation.context.close()


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., object], argument: object) -> None:
    """Call a function on a loop, from another thread."""
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(function, argument)


class _Form:
    """The JSON of an answer.

    Args:
        request: the request.
    """

    def __init__(self, request: Completion) -> None:
        self._request = request
        kind = ("chat.completion.chunk" if request.is_stream else "chat.completion") if request.is_chat else ""
        self._fields = {
            "id": f"{'chatcmpl' if request.is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": kind or "text_completion",
            "created": int(time.time()),
            "model": request.name,
        }

    def complete(self, text: str, end: _End) -> bytes:
        """Return the whole answer."""
        content = {"message": {"role": "assistant", "content": text}} if self._request.is_chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": end.reason}
        return orjson.dumps({**self._fields, "choices": [choice], "usage": self._usage(end)})

    def begin(self) -> bytes:
        """Return the first event of a stream, if it has one before the text."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None) if self._request.is_chat else b""

    def part(self, part: str | _End) -> bytes:
        """Return the events for a part of the text, or for its end."""
        text = part if isinstance(part, str) else ""
        content: dict[str, Any] = {"text": text}
        if self._request.is_chat:
            content = {"delta": {"content": text} if text else {}}
        if isinstance(part, str):
            return self._chunk(content, None)
        end = self._chunk(content, part.reason)
        if not self._request.has_usage:
            return end
        return end + _event({**self._fields, "choices": [], "usage": self._usage(part)})

    def _chunk(self, content: Mapping[str, Any], reason: str | None) -> bytes:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
        return _event({**self._fields, "choices": [choice]})

    def _usage(self, end: _End) -> dict[str, int]:
        prompt = len(self._request.tokens)
        return {"prompt_tokens": prompt, "completion_tokens": end.count, "total_tokens": prompt + end.count}


def error_event(message: str) -> bytes:
    """Return the event of an error in a stream that has begun, so it has no status."""
    return _event({"error": {"message": message, "type": "server_error"}})


def _event(fields: Mapping[str, Any]) -> bytes:
    """Return a server-sent event."""
    return b"data: " + orjson.dumps(fields) + b"\n\n"


def _message(message: Any) -> tuple[str, str]:
    """Return the role and the text of a message."""
    if not isinstance(message, dict):
        raise RequestError(400, "a message should be a JSON object")
    role, content = message.get("role"), message.get("content")
    role = "system" if role == "developer" else role
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if role not in ("system", "user", "assistant") or not isinstance(content, str):
        raise RequestError(400, "a message should have a role (system, user or assistant) and a text as its content")
    return role, content


def _is_neutral(value: Any, neutral: Sequence[Any]) -> bool:
    """Return true if a value is one of these; Python's 0 and False are equal, JSON's are not."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral)


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise RequestError(400, f"{name!r} should be true or false")
    return bool(value)


def _stops(stops: Any) -> tuple[str, ...]:
    words: Sequence[Any] = () if stops is None else stops if isinstance(stops, list) else (stops,)
    if len(words) > _MOST_STOPS or not all(isinstance(word, str) and word for word in words):
        raise RequestError(400, f"stop should be a text, or an array of up to {_MOST_STOPS}")
    return tuple(words)


def _whole(value: Any, name: str) -> int:
    if type(value) is not int or value < 1:
        raise RequestError(400, f"{name} should be a whole number from 1 on")
    return value
