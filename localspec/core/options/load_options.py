"""Options of loading a model: flags, defaults, bounds, how they are read from text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from localspec.core.errors import UsageError
from localspec.core.options.option import AUTO, Bounds, DraftFlag, option, require_bounds

# A verification of 64 tokens or more takes another path through llama.cpp's CPU flash attention,
# which rounds differently; up to 63, drafted tokens and the pending one, all widths agree.
MAX_DRAFT_TOKENS = 62
MAX_ROWS = MAX_DRAFT_TOKENS + 2  # of logits that a pass gives (`n_outputs_max`)
DEFAULT_CTX_SIZE = 8192
DRAFT_WINDOW = 4096  # tokens of a draft's context by default
TRAINED_CTX_SIZE = 0  # as a context in tokens: the trained one
ALL_LAYERS = 2**31 - 1
DEFAULT_BATCH = 512  # tokens
MAX_THREADS = 512  # GGML_MAX_N_THREADS; llama.cpp aborts beyond it

DraftTokens = int | Literal["auto"]  # 0 is "off"
FlashAttention = Literal["auto", "on", "off"]
CacheType = Literal["f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
CACHE_TYPES: tuple[CacheType, ...] = get_args(CacheType)
SplitMode = Literal["none", "layer", "row", "tensor"]
RopeScaling = Literal["none", "linear", "yarn"]


class KeyValue(NamedTuple):
    """A metadata key of a GGUF file, and the value that replaces its own."""

    key: str
    value: int | float | bool | str

    def __str__(self) -> str:
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"{self.key}={type(self.value).__name__}:{value}"


class Lora(NamedTuple):
    """A LoRA adapter's file, and its weight."""

    path: Path
    scale: float = 1.0

    def __str__(self) -> str:
        return f"{self.path}" if self.scale == 1 else f"{self.path}:{self.scale:g}"


class Shares(tuple[float, ...]):
    """The share of each GPU."""


class RpcServer(NamedTuple):
    """Address of a worker of llama.cpp's RPC: a name or an IP address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RpcServers(tuple[RpcServer, ...]):
    """The workers that take layers of the target, none of them twice."""


DRAFT_TOKENS = Bounds(0, MAX_DRAFT_TOKENS)
CTX_SIZE = Bounds(8, 2**31 - 1)
LAYERS = Bounds(0, ALL_LAYERS)
PARALLEL = Bounds(1, MAX_ROWS // 2)  # texts at the same time
BRANCHES = Bounds(1, 3)  # candidates at one place of a tree
MAX_PATHS = 16  # of a tree that is verified in one pass
THREADS = Bounds(1, MAX_THREADS)
# A verification must fit into one batch; beyond the upper bound buffers take gigabytes.
BATCH = Bounds(MAX_ROWS, 2**16)

ROPE_SCALE = Bounds(1e-6, 1e6)
_FACTOR = Bounds(0, 1e6)

MAX_RPC_SERVERS = 16  # GGML_RPC_MAX_SERVERS
_LONGEST_HOST = 253  # characters of a name in the DNS
_LONGEST_OVERRIDE = 127  # bytes of a key or a text (`llama_model_kv_override`)
_HOST = re.compile(r"[\w.:%-]+", re.ASCII)


def parse_key_value(text: str) -> KeyValue:
    """Read ``KEY=TYPE:VALUE`` (`string_parse_kv_override`); raises ValueError."""
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
    if not -(2**63) <= number < 2**63:  # also of a text that is not a number
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
    """Read ``HOST:PORT,HOST:PORT``, an IPv6 address in brackets; raises ValueError."""
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
    """Read shares such as ``3,1`` or ``3/1``, at least one above 0; raises ValueError."""
    shares = Shares(float(part) for part in re.split("[,/]", text))
    if not all(0 <= share <= 1e6 for share in shares) or not any(shares):
        raise ValueError("expected shares such as 3,1")
    return shares


_loading = partial(option, panel="Loading")
_stateless = partial(_loading, state=False)  # saved states of tokens do not depend on them
_devices = partial(option, panel="Devices", state=False)
_adapting = partial(option, (), panel="Rope and adapters")
_rope = partial(option, None, panel="Rope and adapters")


@dataclass(frozen=True, slots=True)
class RopeOptions:
    """Rotary position embedding in place of the model's own; None: as in the file.

    Names are those of `llama_context_params`.
    """

    rope_scaling_type: RopeScaling | None = _rope(
        "--rope-scaling", "RoPE scaling of the target. Default: the model's."
    )
    rope_freq_base: float | None = _rope(
        "--rope-freq-base",
        "RoPE base frequency of the target. Default: the model's.",
        bounds=Bounds(1e-3, 1e12),
    )
    rope_freq_scale: float | None = _rope(
        "--rope-freq-scale",
        "Factor of the target's RoPE positions: 0.5 doubles the context.",
        bounds=ROPE_SCALE,
    )
    yarn_orig_ctx: int | None = _rope(
        "--yarn-orig-ctx",
        "YaRN: context that the target was trained for, in tokens. Default: the model's.",
        bounds=CTX_SIZE,
    )
    yarn_ext_factor: float | None = _rope(
        "--yarn-ext-factor", "YaRN: share of extrapolation; 0: none.", bounds=_FACTOR
    )
    yarn_attn_factor: float | None = _rope(
        "--yarn-attn-factor", "YaRN: factor of the attention.", bounds=_FACTOR
    )
    yarn_beta_slow: float | None = _rope(
        "--yarn-beta-slow", "YaRN: rotations below which frequencies are scaled.", bounds=_FACTOR
    )
    yarn_beta_fast: float | None = _rope(
        "--yarn-beta-fast", "YaRN: rotations above which frequencies stay.", bounds=_FACTOR
    )

    def __post_init__(self) -> None:
        require_bounds(self)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How one model is loaded. None means "decide from the file and the machine".

    Sizes are in tokens, threads in operating-system threads. ``ctx_size`` 0 is the context the
    model was trained for. ``window_copies`` keeps copies of sliding windows, for later prompts to
    return to. ``own_cells`` gives each slot's text cells of its own in the cache, where they stay
    in the order of its tokens, on which rounding depends. ``exact`` uses only pass widths with
    identical rounding, as llama.cpp's kernels round differently at different widths; they are found
    once per file and machine. ``row_kernels`` holds for the process: the target that is loaded last
    decides. ``load_heads`` also loads the MTP (NextN) heads that the file may have. ``parallel`` is
    the number of slots, each with a context of ``ctx_size``, or with ``kv_unified`` all together:
    ``shared_ctx``, which the memory plan sets with the longest text of one. ``branches`` is the
    most candidates at one place of a tree that the target verifies in one pass, with a fixed draft
    length: 1 is a chain. ``path`` may be given as a text. Raises UsageError for a value of a wrong
    type or outside its bounds.
    """

    path: Path
    ctx_size: int | None = _stateless(
        None,
        "--ctx-size -c",
        "Context in tokens; 0: the trained one. Default: 8192, or what fits.",
        bounds=CTX_SIZE,
        words={"0": TRAINED_CTX_SIZE},
        everyday=True,
        stored=True,
        draft=DraftFlag(
            "--draft-ctx-size -cd",
            "Context of the draft in tokens; of a longer text it sees the most recent part. "
            "Default: the target's, at most 4096 and the draft's trained one.",
            takes_words=False,
        ),
    )
    threads: int | None = _stateless(
        None,
        "--threads -t",
        "CPU threads. Default: physical cores.",
        bounds=THREADS,
        everyday=True,
        stored=True,
        draft=DraftFlag("--draft-threads -td", "Threads of the draft. Default: as --threads."),
    )
    threads_batch: int | None = _stateless(
        None,
        "--threads-batch -tb",
        "CPU threads for prompts and verification. Default: as --threads.",
        bounds=THREADS,
        stored=True,
    )
    batch_size: int = _stateless(
        DEFAULT_BATCH,
        "--batch-size -b",
        "Most tokens of a prompt in one call of llama.cpp.",
        bounds=BATCH,
    )
    ubatch_size: int = _stateless(
        DEFAULT_BATCH,
        "--ubatch-size -ub",
        "Most tokens that llama.cpp computes at once; more take more memory.",
        bounds=BATCH,
    )
    mlock: bool = _loading(False, "--mlock", "Lock the models in RAM.", affects_speed=False)
    mmap: bool = _stateless(
        True, "--no-mmap", "Read the models into memory instead of mapping their files."
    )
    flash_attention: FlashAttention = _loading(
        "auto",
        "--flash-attn -fa",
        "Flash attention; without a value: on. Default: auto, which on a CPU without row kernels "
        "is on for short contexts only.",
        stored=True,
    )
    cache_type_k: CacheType = _loading(
        "f16",
        "--cache-type-k -ctk",
        f"Type of the cached keys: {', '.join(CACHE_TYPES)}.",
        metavar="TYPE",
        stored=True,
        draft=DraftFlag(
            "--cache-type-k-draft -ctkd",
            "Type of the draft's cached keys. Default: f16, whatever the target's.",
        ),
    )
    cache_type_v: CacheType = _loading(
        "f16",
        "--cache-type-v -ctv",
        "Type of the cached values.",
        metavar="TYPE",
        stored=True,
        draft=DraftFlag(
            "--cache-type-v-draft -ctvd",
            "Type of the draft's cached values. Default: f16, whatever the target's.",
        ),
    )
    exact: bool = _loading(
        False,
        "--exact",
        "Identical text for every draft length and any state of the caches: uses only pass widths "
        "with identical rounding, measured at the first start. Free if row kernels compute the "
        "model; else slower, with no drafts if plain decoding is faster.",
        stored=True,
    )
    row_kernels: bool = _loading(
        True,
        "--row-kernels",
        "On the CPU, compute with localspec's own kernels, if llama.cpp was built with them: "
        "passes of several tokens are cheap, with identical rounding at any width. Default: on.",
        metavar="on|off",
        words={"on": True, "off": False},
        stored=True,
        llama_cpp=False,
    )
    gpu_layers: int | None = _devices(
        None,
        "--n-gpu-layers -ngl",
        "Layers on GPUs. Default: all that fit.",
        metavar="N|auto|all",
        bounds=LAYERS,
        words={"auto": AUTO, "-1": AUTO, "all": ALL_LAYERS, "-2": ALL_LAYERS},
        everyday=True,
        stored=True,
        draft=DraftFlag(
            "--draft-n-gpu-layers -ngld",
            "Layers of the draft on the GPU. Default: auto, as many as fit, before the target's.",
        ),
    )
    device: str | None = _devices(
        None,
        "--device -dev",
        "Devices of the target, separated by commas, or none; see localspec doctor.",
        draft=DraftFlag(
            "--draft-device -devd", "Devices of the draft, separated by commas, or none."
        ),
    )
    cpu_moe_layers: int = _devices(
        0,
        "--n-cpu-moe -ncmoe",
        "Keep the experts of the first N layers in RAM.",
        bounds=LAYERS,
        stored=True,
    )
    override_tensors: tuple[str, ...] = _devices(
        (),
        "--override-tensor -ot",
        "Buffer type of the target's tensors that match a regular expression; may be repeated.",
        metavar="PATTERN=BUFFER",
        draft=DraftFlag("--override-tensor-draft -otd", "As --override-tensor, for the draft."),
    )
    tensor_split: tuple[float, ...] = _devices(
        (),
        "--tensor-split -ts",
        "Share of the layers for each GPU, such as 3,1.",
        metavar="SHARE,SHARE...",
        parse=parse_shares,
        many=False,
    )
    split_mode: SplitMode = _devices(
        "layer", "--split-mode -sm", "How a model is divided among several GPUs."
    )
    main_gpu: int = _devices(
        0,
        "--main-gpu -mg",
        "The only GPU with --split-mode none; with row, the one for tensors that cannot be split.",
        bounds=Bounds(0, 1023),
    )
    rpc: RpcServers = _devices(
        RpcServers(),
        "--rpc",
        "Spread the target over llama.cpp's RPC servers, if it is too large for this machine; the "
        "draft stays here. Weights and text travel unencrypted.",
        metavar="HOST:PORT,...",
        parse=parse_rpc_servers,
    )
    trust_rpc_network: bool = _devices(
        False,
        "--trust-rpc-network",
        "Allow --rpc addresses outside private networks.",
        affects_speed=False,
    )
    rope: RopeOptions = RopeOptions()
    loras: tuple[Lora, ...] = _adapting(
        "--lora",
        "A LoRA adapter (GGUF) for the target; may be repeated.",
        metavar="FILE",
        parse=lambda text: Lora(Path(text)),
    )
    override_kv: tuple[KeyValue, ...] = _adapting(
        "--override-kv",
        "Replace a metadata value of both models (int, float, bool, str); may be repeated.",
        metavar="KEY=TYPE:VALUE",
        parse=parse_key_value,
    )
    load_heads: bool = False
    window_copies: bool = True
    own_cells: bool = False
    parallel: int = option(1, bounds=PARALLEL, state=False)
    kv_unified: bool = option(False, affects_speed=False, state=False)
    shared_ctx: int | None = None
    branches: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | Path):
            raise UsageError(
                f"{self.path!r:.60} is no path.", 'Give the GGUF file\'s: LoadOptions("x.gguf").'
            )
        object.__setattr__(self, "path", Path(self.path))
        require_bounds(self)

    @property
    def sequences(self) -> int:
        """Most sequences of its context: those of the texts, or the paths of a tree of one text.

        A tree's tokens may lie in other cells than those of a chain, which changes rounding.
        """
        has_trees = self.branches != 1 and self.parallel == 1 and not self.exact
        return MAX_PATHS if has_trees else self.parallel

    @property
    def filling(self) -> int:
        """Tokens of room that passes need after the text for padding."""
        return MAX_ROWS if self.exact else 0

    def cells(self, ctx_size: int) -> int:
        """Tokens that its context holds if each slot's text has at most ``ctx_size``.

        Of cells that slots share, each may have a round's candidates more.
        """
        every, shared = self.parallel * ctx_size, self.shared_ctx if self.kv_unified else None
        return every if shared is None else min(every, shared + self.parallel * MAX_ROWS)

    @property
    def copies_windows(self) -> bool:
        """Whether windows are copied: they return in other cells, whose order affects rounding."""
        return self.window_copies and not self.exact

    @property
    def resident(self) -> bool:
        """Whether the weights must stay in memory, since they cannot be read again when needed."""
        return self.mlock or not self.mmap


def load_options(document: Mapping[str, Any]) -> LoadOptions:
    """The options that `dataclasses.asdict` and JSON turned into this, without RPC servers."""
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
