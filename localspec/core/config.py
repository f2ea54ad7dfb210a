"""Options of loading and drafting: defaults, bounds, how they are read from text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from localspec.core.errors import UsageError

# A verification of 64 tokens or more takes another path through llama.cpp's CPU flash attention,
# which rounds differently; up to 63, drafted tokens and the pending one, all widths agree.
MAX_DRAFT_TOKENS = 62
MAX_ROWS = MAX_DRAFT_TOKENS + 2  # of logits that a pass gives (`n_outputs_max`)
DEFAULT_CTX_SIZE = 8192
TRAINED_CTX_SIZE = 0  # as a context in tokens: what the model was trained for
ALL_LAYERS = 2**31 - 1
DEFAULT_BATCH = 512  # tokens
MAX_THREADS = 512  # GGML_MAX_N_THREADS; llama.cpp aborts beyond it

DraftTokens = int | Literal["auto"]  # 0 is "off"
Branches = int | Literal["auto"]  # most candidates at one place of a tree; 1 is a chain
FlashAttention = Literal["auto", "on", "off"]
CacheType = Literal["f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
CACHE_TYPES: tuple[CacheType, ...] = get_args(CacheType)
SplitMode = Literal["none", "layer", "row", "tensor"]
RopeScaling = Literal["none", "linear", "yarn"]


class KeyValue(NamedTuple):
    """A metadata key of a GGUF file, and the value it is given instead."""

    key: str
    value: int | float | bool | str


class Lora(NamedTuple):
    """A LoRA adapter's file, and its weight."""

    path: Path
    scale: float = 1.0


class Shares(tuple[float, ...]):
    """The share of each GPU."""


class RpcServer(NamedTuple):
    """Where a worker of llama.cpp's RPC listens: a name or an IP address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RpcServers(tuple[RpcServer, ...]):
    """The workers that take layers of the target, none of them twice."""


class Bounds(NamedTuple):
    """The least and the largest value that a setting may have."""

    low: int
    high: int


# Of the command line and of the file of a pair.
DRAFT_TOKENS = Bounds(0, MAX_DRAFT_TOKENS)
CTX_SIZE = Bounds(8, 2**31 - 1)
LAYERS = Bounds(0, ALL_LAYERS)
PARALLEL = Bounds(1, MAX_ROWS // 2)  # texts at the same time
BRANCHES = Bounds(1, 3)  # candidates at one place of a tree
MAX_PATHS = 16  # of a tree that is verified in one pass
THREADS = Bounds(1, MAX_THREADS)
# A verification must fit into one batch; beyond the upper bound buffers take gigabytes.
BATCH = Bounds(MAX_ROWS, 2**16)

MAX_RPC_SERVERS = 16  # GGML_RPC_MAX_SERVERS
_LONGEST_HOST = 253  # characters of a name in the DNS
_LONGEST_OVERRIDE = 127  # bytes of a key or a text (`llama_model_kv_override`)
_HOST = re.compile(r"[\w.:%-]+", re.ASCII)
_ODD_NUMBER = re.compile(r"-[\d.,]+|\d*\.\d+")  # meant as a length, and never a file


@dataclass(frozen=True, slots=True)
class RopeOptions:
    """Rotary position embedding in place of the model's own; None is what the file says.

    ``freq_scale`` multiplies positions; ``yarn_orig_ctx`` is in tokens. Names are those of
    `llama_context_params`.
    """

    rope_scaling_type: RopeScaling | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_slow: float | None = None
    yarn_beta_fast: float | None = None


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How one model is loaded. None means "decide from the file and the machine".

    Sizes are in tokens, threads in operating-system threads. ``ctx_size`` 0 is the context the
    model was trained for. llama.cpp takes ``batch_size`` tokens in a call, and computes
    ``ubatch_size`` of them at once, both within `BATCH`. ``loras`` are adapter files with the scale
    of each, ``override_kv`` values that replace those of the file. ``exact`` makes every decode at
    least two tokens wide, because llama.cpp's one-token kernels may round differently from all
    others. ``load_heads`` also loads the MTP (NextN) heads that the file may have. ``parallel`` is
    how many texts the context holds, each of ``ctx_size``. ``rpc`` are servers that take layers;
    ``trust_rpc_network`` allows any address of theirs. ``branches`` is the most candidates at one
    place of a tree that the target verifies in one pass: 1 is a chain; "auto" allows as many as
    there may be, but only where they pay, so that a fixed draft length stays a chain.
    """

    path: Path
    ctx_size: int | None = None
    gpu_layers: int | None = None
    threads: int | None = None
    threads_batch: int | None = None
    device: str | None = None
    cpu_moe_layers: int = 0
    override_tensors: tuple[str, ...] = ()
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    split_mode: SplitMode = "layer"
    mlock: bool = False
    mmap: bool = True
    batch_size: int = DEFAULT_BATCH
    ubatch_size: int = DEFAULT_BATCH
    flash_attention: FlashAttention = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    rope: RopeOptions = RopeOptions()
    loras: tuple[Lora, ...] = ()
    override_kv: tuple[KeyValue, ...] = ()
    exact: bool = False
    load_heads: bool = False
    rpc: RpcServers = RpcServers()
    trust_rpc_network: bool = False
    parallel: int = 1
    branches: Branches = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "ubatch_size"):
            if not BATCH.low <= getattr(self, name) <= BATCH.high:
                raise UsageError(
                    f"{name} is {getattr(self, name)}, expected a value from {BATCH.low} to "
                    f"{BATCH.high}.",
                    f"The default is {DEFAULT_BATCH}.",
                )

        if not PARALLEL.low <= self.parallel <= PARALLEL.high:
            raise UsageError(
                f"{self.parallel} texts at the same time were asked for.",
                f"Expected a number from {PARALLEL.low} to {PARALLEL.high}.",
            )

    @property
    def sequences(self) -> int:
        """Most sequences of its context: those of the texts, or the paths of a tree of one text.

        A tree's tokens may lie in other cells than those of a chain, and round otherwise.
        """
        has_trees = self.branches != 1 and self.parallel == 1 and not self.exact
        return MAX_PATHS if has_trees else self.parallel

    @property
    def resident(self) -> bool:
        """Whether the weights must stay in memory, since they cannot be read again when needed."""
        return self.mlock or not self.mmap


def load_options(document: Mapping[str, Any]) -> LoadOptions:
    """The options that `dataclasses.asdict` and JSON made this of, without RPC servers."""
    typed = {
        "path": Path(document["path"]),
        "override_tensors": tuple(document["override_tensors"]),
        "tensor_split": tuple(document["tensor_split"]),
        "rope": RopeOptions(**document["rope"]),
        "loras": tuple(Lora(Path(path), scale) for path, scale in document["loras"]),
        "override_kv": tuple(KeyValue(*each) for each in document["override_kv"]),
        "rpc": RpcServers(),
    }
    return LoadOptions(**{**document, **typed})


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """Which draft model, as it was named, and how many tokens it proposes in a round (0: none)."""

    model: str | None = None
    lengths: tuple[DraftTokens, ...] = ()

    def one_length(self, default: DraftTokens) -> DraftTokens:
        """The single length asked for; raises UsageError where a list was given."""
        if len(self.lengths) > 1:
            raise UsageError(
                "This command takes one draft length, not a list.", "Give one number, auto or off."
            )
        return self.lengths[0] if self.lengths else default


def parse_key_value(text: str) -> KeyValue:
    """Read ``KEY=TYPE:VALUE`` with the types int, float, bool and str (`string_parse_kv_override`).

    Raises ValueError, a sentence without its end, for anything else.
    """
    key, _, typed = text.partition("=")
    kind, colon, value = typed.partition(":")
    if not key or not colon or kind not in ("int", "float", "bool", "str"):
        raise ValueError("expected KEY=TYPE:VALUE with a type of int, float, bool or str")
    if len(key.encode()) > _LONGEST_OVERRIDE or len(value.encode()) > _LONGEST_OVERRIDE:
        raise ValueError(f"a key or a text has at most {_LONGEST_OVERRIDE} bytes")
    if kind == "str":
        return KeyValue(key, value)
    if kind == "bool":
        if value not in ("true", "false"):
            raise ValueError("a bool is true or false")
        return KeyValue(key, value == "true")
    number = int(value) if kind == "int" else float(value)
    if not -(2**63) <= number < 2**63:  # also of what is no number
        raise ValueError("a number has at most 64 bits")
    return KeyValue(key, number)


def parse_lora(text: str) -> Lora:
    """Read ``FILE:SCALE``; raises ValueError, a sentence without its end, for anything else."""
    name, colon, scale = text.rpartition(":")
    if not colon or not name:
        raise ValueError("expected FILE:SCALE, such as style.gguf:0.5")
    number = float(scale)
    if not -1e3 <= number <= 1e3:
        raise ValueError("expected a scale from -1000 to 1000")
    return Lora(Path(name), number)


def parse_rpc_servers(text: str) -> RpcServers:
    """Read ``HOST:PORT,HOST:PORT``, an IPv6 address in brackets.

    Raises ValueError, a sentence without its end, for anything else.
    """
    servers = RpcServers(_rpc_server(part.strip()) for part in text.split(","))
    if len(servers) > MAX_RPC_SERVERS:
        raise ValueError(f"llama.cpp takes at most {MAX_RPC_SERVERS} RPC servers")
    if len(set(servers)) < len(servers):
        raise ValueError("one server is named twice")
    return servers


def _rpc_server(text: str) -> RpcServer:
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not host or (":" in host) != bracketed or not port.isascii() or not port.isdecimal():
        raise ValueError("expected HOST:PORT, such as 192.168.0.2:50052")
    if len(host) > _LONGEST_HOST or not _HOST.fullmatch(host):
        raise ValueError(f"{host[:40]!r} is neither a host name nor an IP address")
    if not 1 <= int(port[:6]) <= 65535:
        raise ValueError("a port is a number from 1 to 65535")
    return RpcServer(host, int(port))


def parse_shares(text: str) -> Shares:
    """Read shares such as ``3,1`` or ``3/1``, of which one must not be 0; raises ValueError."""
    shares = Shares(float(part) for part in re.split("[,/]", text))
    if not all(0 <= share <= 1e6 for share in shares) or not any(shares):
        raise ValueError("expected shares such as 3,1")
    return shares


def parse_draft_tokens(text: str) -> tuple[DraftTokens, ...] | None:
    """Read ``8``, ``auto``, ``off`` or a list such as ``0,2,4``; None when it is none of these."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part in ("auto", "off") or part.isdecimal() for part in parts):
        return None
    lengths: list[DraftTokens] = []
    for part in parts:
        length: DraftTokens = "auto" if part == "auto" else 0 if part == "off" else int(part[:9])
        if length != "auto" and (length > MAX_DRAFT_TOKENS or len(part) > 9):
            raise UsageError(
                f"A draft of {part[:99]} tokens exceeds what we verify, {MAX_DRAFT_TOKENS}.",
                "Draft lengths that pay are between 1 and 16; try --draft 4.",
            )
        lengths.append(length)
    return tuple(lengths)


def choose_draft(either: list[str], model: str | None, lengths: str | None) -> DraftOptions:
    """Sort the values of ``--draft`` into a model and a length, beside the explicit flags.

    A value that reads as a length (``8``, ``auto``, ``off``, ``0,2,4``) is one; anything else
    names a model. Raises UsageError when two values compete for the same meaning.
    """
    models = [] if model is None else [model]
    texts = [] if lengths is None else [lengths]
    for value in either:
        if _ODD_NUMBER.fullmatch(value):
            raise UsageError(
                f"{value} is no draft length.",
                f"Expected a number from 0 to {MAX_DRAFT_TOKENS}, auto, off, or a GGUF file.",
            )
        (texts.append(value) if parse_draft_tokens(value) else models.append(value))
    if len(models) > 1:
        raise UsageError(
            f"Two draft models were given: {models[0]} and {models[1]}.", "Name one draft model."
        )
    if len(texts) > 1:
        raise UsageError(
            f"Two draft lengths were given: {texts[0]} and {texts[1]}.", "Give one draft length."
        )
    parsed = parse_draft_tokens(texts[0]) if texts else ()
    if parsed is None:
        raise UsageError(
            f"--draft-tokens {texts[0]!r} is no draft length.",
            f"Expected a number from 0 to {MAX_DRAFT_TOKENS}, auto or off.",
        )
    return DraftOptions(models[0] if models else None, parsed)
