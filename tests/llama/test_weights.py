"""Weights: a split model whose parts have names in capitals, which llama.cpp would not look for."""

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.support.files.gguf_files import I32, U16, Typed, write_with_gguf
from tests.support.files.tiny_models import read_all
from tests.support.real_pair import TinyFiles, load_model

pytestmark = pytest.mark.llama


def test_parts_in_capitals_load(tiny: TinyFiles, tmp_path: Path) -> None:
    keys, tensors = read_all(tiny.draft)
    names = list(tensors)
    for number, part in enumerate((names[:4], names[4:])):
        split = {
            "split.no": Typed(U16, number),
            "split.count": Typed(U16, 2),
            "split.tensors.count": Typed(I32, len(names)),
        }
        own = keys if number == 0 else {"general.architecture": keys["general.architecture"]}
        path = tmp_path / f"m-{number + 1:05d}-of-00002.GGUF"
        write_with_gguf(path, {**own, **split}, {name: tensors[name] for name in part})
    rows = []
    for file in (tiny.draft, tmp_path / "m-00001-of-00002.GGUF"):
        with closing(load_model(file)) as model:
            rows.append(model.decode([1, 2, 3], 1)[-1].copy())
    assert np.array_equal(*rows)


WITHOUT_MMAP = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
void *mmap(void *at, size_t size, int access, int flags, int file, off_t from) {
  char link[32], path[4096] = "";
  if (file >= 0 && !(flags & MAP_ANONYMOUS)) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, ".gguf")) {
      errno = ENODEV;
      return MAP_FAILED;
    }
  }
  return (void *)syscall(SYS_mmap, at, size, access, flags, file, from);
}
void *mmap64(void *at, size_t size, int access, int flags, int file, off_t from) {
  return mmap(at, size, access, flags, file, from);
}
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("cc"), reason="needs Linux and a C compiler"
)
def test_a_file_system_without_mmap(tiny: TinyFiles, tmp_path: Path) -> None:
    (tmp_path / "mmap.c").write_text(WITHOUT_MMAP)
    library = tmp_path / "mmap.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "mmap.c"], check=True)
    code = f"""
import localspec
for more in {{}}, {{"mmap": False}}:
    try:
        print(localspec.load({str(tiny.draft)!r}, "off", ctx_size=64, **more).name)
    except localspec.EngineError as problem:
        print(problem.message, "|", problem.hint)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
    )
    refused, loaded = done.stdout.splitlines()
    assert "mmap failed: No such device" in refused and refused.endswith("add mmap=False."), done
    assert loaded == tiny.draft.stem
