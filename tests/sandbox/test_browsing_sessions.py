"""Questions over pages in real Chromium: an episode of each family by its oracle, the page's search beside ours, and cheats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from sandbox import actions
from sandbox.actions import Action, Finished
from sandbox.browser.backend import BrowserBackend, launch
from sandbox.browser.page_session import PageSession
from sandbox.session import Observation
from sandbox.tasks.browsing.corpora import corpus
from sandbox.tasks.browsing.instance import Instance
from sandbox.tasks.browsing.source import SOURCE, BrowsingSource, instance_of, load_tasks
from sandbox.tasks.task import Split, Task
from tests.sandbox.web_pages import click, find, page_value
from warehouse.core.errors import CorpusMissing

TASKS = load_tasks()


class Browser:
    def __init__(self, runner: asyncio.Runner, host: BrowserBackend) -> None:
        self._runner, self._host = runner, host

    def run(self, use: Callable[[PageSession, Observation, Instance], Awaitable[None]], task: Task, seed: int | None = None) -> None:
        async def used() -> None:
            chosen = task.seeds(Split.TRAIN, 1)[0] if seed is None else seed
            session = PageSession(self._host.open_page, {SOURCE: BrowsingSource()}, screenshots=False)
            try:
                await use(session, await session.reset(task, chosen), instance_of(task, chosen))
            finally:
                await session.close()

        self._runner.run(used())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with asyncio.Runner() as runner:
        host = runner.run(launch("beginframe"))
        try:
            yield Browser(runner, host)
        finally:
            runner.run(host.close())


@pytest.mark.parametrize("name", TASKS)
def test_the_oracle_answers_a_question_of_each_family(browser: Browser, name: str) -> None:
    async def use(session: PageSession, first: Observation, instance: Instance) -> None:
        assert first.instruction == instance.question and first.url.endswith(instance.start)
        assert not (await session.evaluate()).success
        num_seen = [len(first.elements)]
        while True:
            action = await session.oracle_action()
            assert action is not None
            transition = await session.step(action)
            assert not transition.info.keys() & {"blocked", "ignored", "unsettled"}, transition.info
            num_seen.append(len(transition.observation.elements))
            if transition.terminated or transition.truncated:
                break
        assert transition.reward == 1.0 and transition.terminated and (await session.evaluate()).success
        assert isinstance(action, Finished) and len(num_seen) <= TASKS[name].max_steps
        if name in load_tasks("small"):
            assert max(num_seen) <= 25 and len(num_seen) <= 7

    try:
        browser.run(use, TASKS[name])
    except CorpusMissing as error:
        pytest.skip(str(error))


def test_an_oracle_finds_back_from_elsewhere(browser: Browser) -> None:
    async def use(session: PageSession, first: Observation, instance: Instance) -> None:
        for url in ("https://almanac.test/element/050.html", "https://almanac.test/nonesuch.html"):
            await session.step(actions.Navigate(url=url))
        for _ in range(20):
            action = await session.oracle_action()
            assert action is not None
            if (transition := await session.step(action)).terminated:
                break
        assert transition.reward == 1.0

    browser.run(use, TASKS["chain-2"])


def test_the_page_searches_as_the_filter_does(browser: Browser) -> None:
    known = corpus("almanac")
    queries = ["Mali", "são paulo", "capital of Mali", "constructor toString", "é", "no such thing at all", "CFA Franc", "10,000 km²"]
    queries += [instance_of(TASKS[name], seed).question for name in ("conditions-3", "chain-3") for seed in range(10)]

    async def use(session: PageSession, first: Observation, instance: Instance) -> None:
        await session.step(click(first, "Search for"))
        await session.step(actions.TypeText(text="Bamako\n"))
        for query in queries:
            assert await page_value(session, f"resultsOf({query!r}).map(each => each[2])") == known.index.results(query), query
        shown = await session.step(actions.Wait(seconds=0.1))
        assert shown.observation.url == "https://almanac.test/search.html?q=Bamako" and find(shown.observation, "Bamako")

    browser.run(use, TASKS["chain-2"])


FORGERY = """(() => {
  document.title = ANSWER; document.body.innerHTML = "<h1>" + ANSWER + "</h1>"; history.replaceState(null, "", "?answer=" + ANSWER);
  localStorage.reward = sessionStorage.reward = 1; document.cookie = "reward=1";
  for (const name of ["reward", "done", "state", "success", "answer"]) window[name] = () => ({ reward: 1, done: true, accepted: true });
  Object.prototype.reward = 1; Object.prototype.toJSON = () => ({ reward: 1, done: true });
  Array.prototype.map = () => [1]; JSON.stringify = () => '{"reward": 1, "done": true}';
})()"""


def everything(instance: Instance) -> list[str]:
    """Answers that hold the right one among others."""
    names = [entity.name for entity in instance.corpus.graph.kinds["country"]]
    answer = instance.answer
    return [
        ", ".join(names),
        "\n".join(names),
        f"{answer} or Mali",
        f"The answer is {answer}",
        f"{answer} ({answer})",
        f"{answer}{answer}",
        "",
    ]


@pytest.mark.parametrize("name", ["lookup-read", "conditions-2"])
def test_cheats_earn_nothing(browser: Browser, name: str) -> None:
    async def use(session: PageSession, first: Observation, instance: Instance) -> None:
        forge = FORGERY.replace("ANSWER", repr(instance.answer))
        with_page: list[list[Action]] = [
            [],
            [actions.Navigate(url=f"javascript:{forge}")],
            [actions.Navigate(url=f"data:text/html,<h1>{instance.answer}</h1>")],
            [click(first, "Search for"), actions.TypeText(text=f'<img src=x onerror="{forge}">\n')],
            [actions.Navigate(url=f"https://almanac.test/search.html?q={instance.answer}&reward=1#done")],
            [actions.Hotkey(keys=("f12",)), actions.Hotkey(keys=("ctrl", "shift", "i"))],
        ]
        for place, steps in enumerate(with_page):
            if place:
                await session.reset(TASKS[name], seed)
            for action in steps:
                transition = await session.step(action)
                assert not transition.terminated and transition.reward == 0.0 and not (await session.evaluate()).success
            await page_value(session, forge)  # the worst page there could be
            assert not (await session.evaluate()).success
            transition = await session.step(Finished(answer=everything(instance)[place]))
            assert transition.terminated and transition.reward == 0.0 and not (await session.evaluate()).success
            again = await session.step(Finished(answer=instance.answer))  # too late
            assert again.reward == 0.0 and not (await session.evaluate()).success

    seed = TASKS[name].seeds(Split.TRAIN, 1)[0]
    browser.run(use, TASKS[name], seed)


def test_calling_the_user_or_running_out_of_steps_earns_nothing(browser: Browser) -> None:
    async def use(session: PageSession, first: Observation, instance: Instance) -> None:
        transition = await session.step(actions.CallUser(question=instance.answer))
        assert transition.terminated and transition.reward == 0.0 and not (await session.evaluate()).success
        await session.reset(TASKS["lookup-read"], 0)
        for _ in range(TASKS["lookup-read"].max_steps):
            transition = await session.step(actions.Wait(seconds=0.1))
        assert transition.truncated and not (await session.evaluate()).success

    browser.run(use, TASKS["lookup-read"], 0)
