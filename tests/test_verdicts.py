"""Our verdict on every edge of the comparison is the one that llama.cpp itself was seen to give.

`scripts/record_verdicts.py` wrote down llama.cpp's; here the same files are made again, and only
their headers are read.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from localspec import pairing
from localspec.core.errors import NotAGGUF
from localspec.metadata.findings import RULES
from localspec.metadata.header import read_header
from localspec.pairing import check_pair
from tests.support.files.edge_pairs import CASES, write_pairs

RECORD: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "llama_cpp_verdicts.json").read_text("utf-8")
)
RECORDED: dict[str, dict[str, str | None]] = RECORD["cases"]
VERDICTS = {"accepts", "refuses", "cannot load", "aborts"}
UNREADABLE = "unreadable"  # no rule of ours: such a header is not even read

# What llama.cpp writes when it refuses a pair or a file, and the rule we call that.
REASONS = {
    r"vocab type must match": "vocab-type",
    r"bos tokens must match.* add: (0 - 1|1 - 0)": "add-bos",
    r"bos tokens must match.* add: 1 - 1": "bos-id",
    r"eos tokens must match.* add: (0 - 1|1 - 0)": "add-eos",
    r"eos tokens must match.* add: 1 - 1": "eos-id",
    r"vocab must closely match": "vocab-size",
    r"token \d+ content differs": "token-text",
    r"cannot find tokenizer merges": "no-merges",
    r"unknown pre-tokenizer type": "unknown-pre",
    r"unknown tokenizer:": "unknown-tokenizer",
    r"key not found in model: tokenizer\.ggml\.model": "no-tokenizer",
    r"id_to_token\.size\(\) == token_to_id\.size\(\)": "duplicate-tokens",
    r"token_bos\(\) != LLAMA_TOKEN_NULL": "no-bos-id",
    r"token_eos\(\) != LLAMA_TOKEN_NULL": "no-eos-id",
    r"basic_string::substr": "byte-number",
    r"wrong shape; expected +\d+, +[1-9]\d*, got": "embedding-size",
    r"Tokenizer not initialized|expected +\d+, +0, got": "no-vocabulary",
    r"tensor 'token_embd\.weight' not found": "vocabulary-only",
    r"has wrong type|invalid gguf type|Index out of array bounds": UNREADABLE,
}


def recorded_rule(line: str | None) -> str | None:
    """The rule that a line of llama.cpp's log names; None where there is no line."""
    found = [rule for pattern, rule in REASONS.items() if re.search(pattern, line or "")]
    assert len(found) == (line is not None), f"{line!r} names {found}"
    return found[0] if found else None


def verdict_of_ours(target: Path, draft: Path) -> tuple[bool, str | None]:
    try:
        report = check_pair(read_header(target), read_header(draft))
    except NotAGGUF:
        return False, UNREADABLE
    return report.llama_cpp_accepts, report.llama_cpp_rule


def test_every_case_is_recorded() -> None:
    again = "run scripts/record_verdicts.py again"
    assert list(RECORDED) == list(CASES), again
    assert {case["verdict"] for case in RECORDED.values()} == VERDICTS


def test_the_record_is_of_the_llama_cpp_that_we_name() -> None:
    (commit,) = re.findall(r"commit (\w+)", RECORD["llama_cpp"])
    assert commit in pairing.RULE_VERSION


def test_only_an_acceptance_has_no_reason() -> None:
    for case in RECORDED.values():
        assert (case["verdict"] == "accepts") == (case["line"] is None)
        if case["verdict"] == "refuses":
            assert recorded_rule(case["line"]) in RULES.keys() | {"token-text"}


def test_our_verdict_is_that_of_llama_cpp(tmp_path: Path) -> None:
    wrong, judged = [], []
    for name, target, draft in write_pairs(tmp_path):
        judged.append(name)
        case, content = RECORDED[name], target.read_bytes() + draft.read_bytes()
        if hashlib.sha256(content).hexdigest() != case["sha256"]:
            wrong.append(f"{name}: not what llama.cpp saw")
        accepts, rule = verdict_of_ours(target, draft)
        if (accepts, rule) != (case["verdict"] == "accepts", recorded_rule(case["line"])):
            theirs = " because of ".join(filter(None, (case["verdict"], case["line"])))
            wrong.append(f"{name}: llama.cpp {theirs}; we say {rule or 'accepts'}")
    assert not wrong, "\n".join(wrong)
    assert judged == list(CASES)


def test_most_rules_are_on_record_from_both_sides() -> None:
    """Each test of the comparison refuses some pair, and lets another pass that is next to it."""
    refused = {recorded_rule(case["line"]) for case in RECORDED.values() if case["line"]}
    assert refused >= {*REASONS.values()}
    for kind in ("type", "add_bos", "bos id", "add_eos", "eos id", "size", "text", "load"):
        verdicts = {RECORDED[name]["verdict"] for name in CASES if name.startswith(kind + ":")}
        assert "accepts" in verdicts and len(verdicts) > 1, kind
