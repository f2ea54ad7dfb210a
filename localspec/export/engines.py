"""The engines that a pair can be handed on to, by the names they have on the command line."""

from collections.abc import Callable, Mapping

from localspec.export.facts import Exported, PairFacts
from localspec.export.ik_llama import ik_llama
from localspec.export.llama_cpp import llama_cli, llama_server
from localspec.export.lm_studio import lm_studio
from localspec.export.ollama import ollama
from localspec.export.python_script import python_script
from localspec.export.sglang import sglang
from localspec.export.vllm import vllm

Export = Callable[[PairFacts], Exported]

ENGINES: Mapping[str, Export] = {
    "llama-server": llama_server,
    "llama-cli": llama_cli,
    "ik_llama": ik_llama,
    "vllm": vllm,
    "sglang": sglang,
    "lmstudio": lm_studio,
    "ollama": ollama,
    "python": python_script,
}
