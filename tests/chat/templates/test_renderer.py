"""Renderer: a template that exceeds a limit is one error, and the next one renders."""

import datetime
import os
import signal
import subprocess
import sys
import threading

import pytest

from localspec.chat.templates.renderer import Renderer
from localspec.core import worker
from localspec.core.errors import TemplateError, TemplateLimitExceeded, UsageError, WorkerLost
from localspec.core.worker import Worker, WorkerLimits, command
from localspec.server.errors import describe
from tests.fuzz.templates import fuzz

NOW = datetime.datetime(2024, 7, 26)
MIB = 2**20
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    """One with limits that are reached soon."""
    return Renderer(WorkerLimits(0.3, 256 * MIB))


@pytest.fixture(scope="module")
def small_renderer() -> Renderer:
    """One with little memory, and time to use it up on a busy machine."""
    return Renderer(WorkerLimits(20, 256 * MIB))


def fill(renderer: Renderer, source: str, **variables: object) -> str:
    return renderer.fill(source, variables, NOW, "The template of x.gguf")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' | center(5 * 10**9) }}",
        "{{ '%2000000000d' % 1 }}",
        "{{ '{:>5000000000}'.format('a') }}",
        "{{ range(1000) | join('a' * 10**7) }}",
        "{{ ('a' * 10**7) | replace('a', 'b' * 1000) }}",
        "{{ 'a\\nb' | indent(10**10) }}",
        "{{ [[[]] * 100] | tojson(indent=10**9) }}",
        "{{ 'a' * 10**10 }}",
        "{{ [0] * 10**10 }}",
        "{% set n = namespace(x='ab') %}{% for i in range(40) %}{% set n.x = n.x + n.x %}"
        "{% endfor %}",
    ],
)
def test_memory_is_bounded(small_renderer: Renderer, source: str) -> None:
    with pytest.raises(TemplateLimitExceeded) as raised:
        fill(small_renderer, source)
    assert raised.value.message == "The template of x.gguf needed more than 268 MB of memory."
    assert "--chat-template" in raised.value.hint
    assert fill(small_renderer, "{{ x }}", x="next") == "next"


@pytest.mark.parametrize(
    "source",
    [
        ENDLESS,
        "{{ lipsum(n=10**8) }}",
        "{{ (10 ** 4) ** 40000000 }}",
        "{{ ('a ' * 8000000) | wordwrap(1) }}",
        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(99) }}",
        "{% for a in messages recursive %}{{ loop(messages) }}{{ loop(messages) }}{% endfor %}",
    ],
)
def test_time_is_bounded(renderer: Renderer, source: str) -> None:
    with pytest.raises((TemplateLimitExceeded, TemplateError)):
        fill(renderer, source, messages=[1, 2])
    assert fill(renderer, "{{ x }}", x="next") == "next"


def test_the_limit_of_time_is_named(renderer: Renderer) -> None:
    with pytest.raises(TemplateLimitExceeded, match="x.gguf took more than 0.3 seconds of proc"):
        fill(renderer, ENDLESS)


def test_names_are_read_within_the_limits(renderer: Renderer) -> None:
    assert renderer.names_read("{{ a }}{{ b.c }}", "It") == {"a", "b"}
    with pytest.raises(TemplateError, match="^It cannot be rendered: .*end of print"):
        renderer.names_read("{{ x", "It")


@pytest.mark.skipif(sys.platform != "linux", reason="needs the system's limit not to be polled for")
@pytest.mark.parametrize("source", [ENDLESS, "{{ 'a' | center(10**9) }}" * 99])
def test_where_the_system_has_no_limit_the_child_is_watched(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_WALL_PER_SECOND", 1)
    polled = Renderer(WorkerLimits(1, 64 * MIB, polled=True))
    assert fill(polled, "{{ x }}", x="before") == "before"
    with pytest.raises(TemplateLimitExceeded, match="67 MB|1 seconds"):
        fill(polled, source)
    assert fill(polled, "{{ x }}", x="after") == "after"
    polled.close()


def test_a_child_that_was_killed_is_started_again(renderer: Renderer) -> None:
    fill(renderer, "")
    running = renderer._worker
    assert running is not None
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    assert fill(renderer, "{{ x }}", x=1) == "1"


def killing(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Kill the child from outside while it renders, the next ``times``; those that are left."""
    left, real = [1] * times, Worker._wait

    def wait(running: Worker) -> None:
        if left:
            left.pop()
            os.kill(running.process.pid, signal.SIGKILL)
            running.process.wait()
        real(running)

    monkeypatch.setattr(Worker, "_wait", wait)
    return left


def test_a_child_that_is_killed_while_it_renders_is_tried_once_more(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    killing(monkeypatch, 1)
    assert fill(renderer, "{{ x }}", x=1) == "1"
    left = killing(monkeypatch, 3)
    with pytest.raises(WorkerLost, match="killed from outside .SIGKILL.") as raised:
        fill(renderer, ENDLESS)
    assert len(left) == 1 and describe(raised.value, "1")[0] == 503


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of address space")
def test_a_low_limit_of_the_shell_is_not_the_templates_fault() -> None:
    """Limits are not raised above the shell's, under which small templates still render."""
    code = (
        "import datetime, resource\n"
        "from localspec.chat.templates.renderer import Renderer\n"
        "resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))\n"
        "fill = lambda source: Renderer().fill(source, {}, datetime.datetime.now(), 'It')\n"
        "print(fill('{{ 1 + 1 }}'))\n"
        "try: fill('{{ \"a\" * 10**9 }}')\n"
        "except Exception as error: print(type(error).__name__, error.message)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    text, told = printed.splitlines()
    assert text == "2"
    assert told.startswith("WorkerLost") and "allows 315 MB (ulimit -v)" in told


def test_ctrl_c_leaves_no_reply_behind(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(running: Worker) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Worker, "_wait", interrupted)
        fill(renderer, "first")
    assert fill(renderer, "second") == "second"


def test_threads_get_their_own_texts(renderer: Renderer) -> None:
    wrong: list[str] = []

    def ask(number: int) -> None:
        for i in range(20):
            x = f"{number}-{i}"
            if fill(renderer, "{{ x }}", x=x) != x:
                wrong.append(x)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_variables_arrive_as_they_are(renderer: Renderer) -> None:
    x = {"text": "\ud800\u2028\u00e9\n", "list": [1, 1.5, None, True]}
    assert fill(renderer, "{{ x.text }}{{ x.list }}", x=x) == f"{x['text']}{x['list']}"
    with pytest.raises(UsageError, match="not plain data"):
        fill(renderer, "", x=NOW)


def test_a_long_reason_is_cut(renderer: Renderer) -> None:
    with pytest.raises(TemplateError) as raised:
        fill(renderer, "{{ raise_exception('a' * 10**6) }}")
    assert len(raised.value.message) < 1100


def test_the_child_ends_with_its_parent() -> None:
    arguments = [*command("localspec.chat.templates.sandbox"), "[1, 1073741824, true]"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_random_hostile_templates_end() -> None:
    figures = fuzz(seed=1, count=60, renderer=Renderer(WorkerLimits(0.2, 128 * MIB)))
    assert figures.rendered + figures.refused + figures.exceeded == 60
