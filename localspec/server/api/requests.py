"""Fields and checks that chat and completion requests share."""

import math
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from localspec.chat.content import valid_unicode
from localspec.chat.window import require_prompt_fits
from localspec.core.errors import UsageError
from localspec.core.formatting import one_line
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import MAX_DRAFT_TOKENS
from localspec.core.options.option import Bounds, Option, options
from localspec.core.options.sampling_params import MAX_SEED, SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.grammar.source import MAX_CHARACTERS, read_grammar, read_regex, schema_grammar
from localspec.engine.session.job import GenerationRequest
from localspec.engine.text_stream import Prompt
from localspec.server.errors import BadRequest
from localspec.server.service import Service

MOST_ANSWERS = 16  # to one request: prompts times choices
_MOST_TOKENS = 2**31 - 1
_MOST_ENTRIES = 1024  # of an object
_SHOWN_FIELDS = 10  # of those that are ignored
_MOST_SLOTS = 2**16
_MOST_MS = 10**9
_LIMITS = ("reasoning_budget", "reasoning_budget_message")  # of thoughts
_BUDGETS = ("reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens")
_MOST_OF_A_MESSAGE = 10_000  # characters that a client may force into an answer
_LONGEST_BIASED = 1000  # characters of a text in logit_bias
_LONGEST_NAME = 60  # of a field that is shown
_OTHER_NAMES = {"repeat_penalty": "repetition_penalty", "max_tokens": "n_predict"}


def _whole(value: object) -> object:
    """Accept 3.0 as the integer 3: JSON makes no difference."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _truth(value: object) -> object:
    """Refuse 0 and 1, which equal false and true in Python."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise PydanticCustomError("bool_type", "Input should be true or false")
    return value


def _unicode(value: object) -> object:
    """Replace lone surrogates, such as one half of an emoji."""
    return valid_unicode(value) if isinstance(value, str) else value


def _seed(value: object) -> object:
    """Wrap seeds of 64 bits around at 32, which are llama.cpp's; -1 stays "random"."""
    whole = _whole(value)
    if not isinstance(whole, int) or isinstance(whole, bool) or whole == -1:
        return whole
    return whole % (MAX_SEED + 1)


def _stops(value: object) -> object:
    """A list without empty stop strings, which would end every answer."""
    given = value if isinstance(value, list) else [value]
    return value if value is None else [text for text in given if text != ""]


WHOLE = BeforeValidator(_whole)
TRUTH = BeforeValidator(_truth)
Name = Annotated[str, BeforeValidator(_unicode), StringConstraints(max_length=500)]
Text = Annotated[str, BeforeValidator(_unicode), StringConstraints(max_length=2**26)]
LogprobCount = Annotated[int, Field(ge=0, le=_MOST_TOKENS), WHOLE]
TokenCount = Annotated[int, Field(ge=-1, le=_MOST_TOKENS), WHOLE]
StopText = Annotated[str, BeforeValidator(_unicode), StringConstraints(max_length=1000)]
Stops = Annotated[
    list[StopText],
    Field(max_length=_MOST_ENTRIES, fail_fast=True),
    BeforeValidator(_stops, json_schema_input_type=StopText | list[StopText]),
]


def _few(given: object) -> object:
    """Refuse a large object before each of its entries becomes an error of its own."""
    if isinstance(given, dict) and len(given) > _MOST_ENTRIES:
        raise PydanticCustomError("too_long", f"There are more than {_MOST_ENTRIES} entries")
    return given


class RequestObject(BaseModel):
    """A JSON object in a request: strict types; see `unknown_fields` for fields without one.

    Long lists fail at their first error: collecting a million errors takes a minute.
    """

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, given: Any) -> Any:
        return _few(given)


def unknown_fields(request: RequestObject) -> list[str]:
    """Remove unknown fields and warn of them, as proxies send some."""
    names = list(_remove_unknown(request))
    if not names:
        return []
    shown = [_with_nearest(name, type(request)) for name in names[:_SHOWN_FIELDS]]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return [f"Unknown fields were ignored: {', '.join(shown)}{more}."]


def _remove_unknown(value: object, path: str = "") -> Iterator[str]:
    if isinstance(value, RequestObject):
        extra = value.model_extra or {}
        yield from (path + name for name, each in extra.items() if each is not None)
        extra.clear()
        for name in type(value).model_fields:
            yield from _remove_unknown(getattr(value, name), f"{path}{name}.")
    elif isinstance(value, list):
        for i, each in enumerate(value):
            if isinstance(each, RequestObject):
                yield from _remove_unknown(each, f"{path}{i}.")


def _with_nearest(name: str, kind: type[RequestObject]) -> str:
    """A field's name, and the known name that may have been meant."""
    name = one_line(name[:_LONGEST_NAME])
    near = get_close_matches(name, kind.model_fields, 1, 0.8) if "." not in name else ()
    return f"{name} (did you mean {near[0]}?)" if near else name


class StreamOptions(RequestObject):
    include_usage: bool | None = None
    include_obfuscation: Annotated[Literal[False], TRUTH] | None = None


class JsonSchema(RequestObject):
    name: Name | None = None
    description: Annotated[str, StringConstraints(max_length=MAX_CHARACTERS)] | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextFormat(RequestObject):
    type: Literal["text"]


class JsonObjectFormat(RequestObject):
    """Any JSON object, or one that matches a schema (llama-server's extension)."""

    type: Literal["json_object"]
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class JsonSchemaFormat(RequestObject):
    type: Literal["json_schema"]
    json_schema: JsonSchema


def _nested_schema(form: object) -> object:
    """A format with its schema at the top, as in other APIs, in the form of a chat."""
    if not isinstance(form, dict) or form.get("json_schema") is not None or "schema" not in form:
        return form
    rest = {key: each for key, each in form.items() if key not in ("type", "json_schema")}
    return (
        {"type": "json_schema", "json_schema": rest} if form.get("type") == "json_schema" else form
    )


ResponseFormat = Annotated[
    Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")],
    BeforeValidator(_nested_schema),
]

_ROWS = {name: row for name, row in options(SamplingParams).items() if row.request}


def _known_as(name: str) -> AliasChoices:
    """The name of a field, and that of another server."""
    return AliasChoices(name, _OTHER_NAMES.get(name, name))


def _field(row: Option) -> Any:
    """The type and default of a sampling field; null stands for the server's default."""
    kind: Any = bool
    if bounds := row.request if isinstance(row.request, Bounds) else row.asked or row.bounds:
        limits = Field(ge=bounds.low, le=bounds.high)
        kind = Annotated[int, limits, WHOLE] if row.item is int else Annotated[float, limits]
    if row.name == "seed":
        kind = Annotated[kind, BeforeValidator(_seed, json_schema_input_type=int)]
    return kind | None, Field(None, validation_alias=_known_as(row.name))


if TYPE_CHECKING:

    class SamplingFields(RequestObject):
        """Sampling, by the names of SamplingParams."""

        seed: int | None = None

else:
    SamplingFields = create_model(
        "SamplingFields",
        __base__=RequestObject,
        **{name: _field(row) for name, row in _ROWS.items()},
    )


Bias = Annotated[float, Field(ge=-100, le=100)] | Annotated[Literal[False], TRUTH]
BiasedText = Annotated[Text, StringConstraints(min_length=1, max_length=_LONGEST_BIASED)]
# By token id or text; or pairs, as llama-server takes them. false forbids a token.
LogitBias = (
    Annotated[dict[BiasedText, Bias], Field(max_length=_MOST_ENTRIES), BeforeValidator(_few)]
    | Annotated[
        list[Annotated[list[BiasedText | int | float | bool], Field(min_length=2, max_length=2)]],
        Field(max_length=_MOST_ENTRIES, fail_fast=True),
    ]
)


class StreamedRequest(SamplingFields):
    """Fields of a request whose answer may come as a stream."""

    stream: bool | None = None
    timings_per_token: bool | None = None


class AnswerRequest(StreamedRequest):
    """Fields of both kinds of request; a field that is absent or null takes the default."""

    model: Name | None = None
    n: Annotated[int, Field(ge=1, le=8), WHOLE] | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenCount | None = Field(None, validation_alias=_known_as("max_tokens"))
    stop: Stops | None = None
    logit_bias: LogitBias | None = None
    id_slot: Annotated[int, Field(ge=-1, le=_MOST_SLOTS), WHOLE] | None = None
    # Constraints on the answer's text.
    response_format: ResponseFormat | None = None
    grammar: Annotated[str, StringConstraints(max_length=MAX_CHARACTERS)] | None = None
    json_schema: dict[str, Any] | None = None
    regex: Annotated[str, StringConstraints(max_length=MAX_CHARACTERS)] | None = None
    # Extensions of localspec and llama-server.
    draft_tokens: (
        Annotated[int, Field(ge=0, le=MAX_DRAFT_TOKENS), WHOLE] | Literal["auto", "off"] | None
    ) = None
    return_origins: bool | None = None
    return_progress: bool | None = None
    cache_prompt: Annotated[bool, TRUTH] | None = None
    t_max_predict_ms: Annotated[float, Field(ge=-1, le=_MOST_MS)] | None = None
    reasoning_budget: Annotated[int, Field(ge=-1, le=2**31)] | None = Field(
        None, validation_alias=AliasChoices(*_BUDGETS)
    )
    reasoning_budget_message: Annotated[str, Field(max_length=_MOST_OF_A_MESSAGE)] | None = None
    verbose: bool | None = None
    # Accepted and ignored: they do not change the answer.
    t_max_prompt_ms: Any = None
    user: Any = None
    store: Any = None
    metadata: Any = None
    service_tier: Any = None
    prediction: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    _cache_owner: str = PrivateAttr("")

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def read(self, service: Service, owner: str = "") -> tuple[list[GenerationRequest], list[str]]:
        """One generation request for each answer, and warnings; may take long (tokenization).

        Answers to one prompt have consecutive seeds. Raises LocalspecError for a request that
        cannot be answered, so that it never waits in the queue.
        """
        self._cache_owner = owner
        renamed = service.name_warnings(self.model)
        ignored = unknown_fields(self)
        grammar, warnings = self.read_grammar()
        prompts, n = self.prompts(service.engine), self.n or 1
        if len(prompts) * n > MOST_ANSWERS:
            raise BadRequest(
                f"{len(prompts) * n} answers were requested.", f"Ask for {MOST_ANSWERS} at most."
            )
        options = self._options(service, grammar)
        for prompt in prompts:
            require_prompt_fits(len(prompt), service.engine.target.n_ctx)
        first, slot = service.seed(self.seed), None if self.id_slot == -1 else self.id_slot
        samplings = [replace(options.sampling, seed=(first + i) % (MAX_SEED + 1)) for i in range(n)]
        requests = [
            GenerationRequest(
                prompt,
                replace(options, sampling=sampling),
                slot=slot,
                owner=owner,
                reports_progress=bool(self.stream and self.return_progress),
            )
            for prompt in prompts
            for sampling in samplings
        ]
        warnings += [*self.template_warnings(service.engine), *self._budget_warning(prompts)]
        return requests, renamed + ignored + warnings

    def count(self, service: Service, owner: str = "") -> int:
        """Tokens of the prompt."""
        self._cache_owner = owner
        unknown_fields(self)
        return sum(map(len, self.prompts(service.engine)))

    def prompts(self, engine: Engine) -> list[Prompt]:
        """The prompts; each gets ``n`` answers."""
        raise NotImplementedError

    def answer_tokens(self) -> int | None:
        """The most tokens of an answer; None for the server's default."""
        return self.max_tokens

    def top_logprob_count(self) -> int | None:
        """How many log probabilities are reported for each token; None for none at all."""
        raise NotImplementedError

    def template_warnings(self, engine: Engine) -> list[str]:
        """Settings of this request that the chat template ignores, in sentences."""
        return []

    def _options(self, service: Service, grammar: str | None) -> GenerateOptions:
        defaults, most = service.defaults.options, self.answer_tokens()
        params = self._params(service.engine, defaults.sampling)
        service.engine.token_rules(params)  # refuses a bias of no token
        asked = 0 if self.draft_tokens == "off" else self.draft_tokens
        limits = {name: getattr(self, name) for name in _LIMITS}
        return replace(
            defaults,
            sampling=params,
            draft_tokens=defaults.draft_tokens if asked is None else asked,
            max_tokens=defaults.max_tokens if most is None else most,
            stop=tuple(self.stop or ()),
            grammar=grammar,
            logprobs=self.top_logprob_count(),
            cache_prompt=self.cache_prompt is not False,
            **{name: value for name, value in limits.items() if value is not None},
            max_seconds=limit / 1000 if (limit := self.t_max_predict_ms or 0) > 0 else None,
        ).allowed(service.engine, None if asked is None else _undrafted(service.engine, asked))

    def _budget_warning(self, prompts: list[Prompt]) -> list[str]:
        """A sentence if the limit of thoughts changes nothing."""
        if self.reasoning_budget in (None, -1) or any(each.output.form for each in prompts):
            return []
        return ["The reasoning budget was ignored: this prompt has no marks of thoughts."]

    def _params(self, engine: Engine, defaults: SamplingParams) -> SamplingParams:
        given = {name: getattr(self, name) for name in _ROWS if name != "seed"}
        changes = {name: value for name, value in given.items() if value is not None}
        if self.logit_bias is not None:
            changes["logit_bias"] = tuple(biases(engine, self.logit_bias))
        return replace(defaults, **changes)

    def read_grammar(self) -> tuple[str | None, list[str]]:
        """The grammar of the answer, and a warning for each schema keyword it does not enforce.

        Raises BadRequest for more than one, GrammarError for an invalid one. ``strict`` changes
        nothing: clients set it by themselves, with keywords that no engine enforces.
        """
        given = {
            "grammar": self.grammar,
            "regex": self.regex,
            "json_schema": self.json_schema,
            "response_format": _schema(self.response_format),
        }
        blank = (None, "")  # SillyTavern sends an empty grammar with each request
        found = {
            name: each
            for name, each in given.items()
            if (each.strip() if isinstance(each, str) else each) not in blank
        }
        if len(found) > 1:
            raise BadRequest(f"More than one of {', '.join(given)} was given.", "Give one.")
        for name, each in found.items():
            if isinstance(each, str):
                return (read_regex if name == "regex" else read_grammar)(each), []
            grammar, warnings = schema_grammar(each)
            return grammar, [f"Not enforced: {warning}" for warning in warnings]
        return None, []


def _undrafted(engine: Engine, asked: object) -> tuple[str, str]:
    """The refusal of a draft length by a server that does not draft: message and hint."""
    if (reason := engine.drafts_off_reason) is not None:
        return (
            f"draft_tokens is {asked}, but this server was started with --exact: {reason}.",
            'Ask for "auto" or "off", or start the server without --exact.',
        )
    return (
        f"draft_tokens is {asked}, but this server has no draft model.",
        'Ask for "auto" or "off", or start the server with --draft MODEL.',
    )


def biases(engine: Engine, given: LogitBias) -> Iterator[str]:
    """Biases as SamplingParams has them; a text stands for each of its tokens.

    The keys of an object are texts, those of digits are ids. Raises BadRequest for a wrong pair.
    """
    for token, bias in given.items() if isinstance(given, dict) else given:
        if isinstance(given, dict) and str(token).isdecimal():
            token = int(token)
        is_number = isinstance(bias, int | float) and bias is not True
        if not is_number or not isinstance(token, int | str) or isinstance(token, bool):
            raise BadRequest(
                f"logit_bias has the pair {[token, bias]!r:.60}.",
                "Expected a token id or a text, and a number or false.",
                param="logit_bias",
            )
        value = -math.inf if bias is False else float(bias)
        ids = (
            [token]
            if isinstance(token, int)
            else engine.target.tokenize(token, add_special=False, parse_special=True)
        )
        yield from (f"{each}{value:+.9g}" for each in ids)


def _schema(form: TextFormat | JsonObjectFormat | JsonSchemaFormat | None) -> object:
    """The schema of a response format; None for free text."""
    if isinstance(form, JsonSchemaFormat):
        if form.json_schema.schema_ is None:
            raise UsageError("json_schema has no schema.", 'Ask for "json_object" for any object.')
        return form.json_schema.schema_
    if isinstance(form, JsonObjectFormat):
        return {"type": "object"} if form.schema_ is None else form.schema_
    return None
