"""DesktopSession holds to the Session protocol, as the sessions in pages do, and its tasks' oracles solve them by real input."""

from __future__ import annotations

import io
from pathlib import PurePosixPath

import pytest
from PIL import Image

from sandbox import actions
from sandbox.actions import Action
from sandbox.desktop.apps import missing_packages
from sandbox.desktop.session import DesktopSession
from sandbox.session import Element, Observation, Session, Transition
from sandbox.tasks.desktop.source import SOURCE, load_tasks, make_instance, task_file
from sandbox.tasks.task import Task
from tests.sandbox.one_session import on_desktop
from warehouse.core.errors import ConfigError, SandboxError, TaskError

LACKING = missing_packages(["editor", "files", "terminal", "form"])
needs_desktop = pytest.mark.skipif(bool(LACKING), reason=f"apt-get install --no-install-recommends {' '.join(LACKING)}")

TASKS = load_tasks()


def find(observation: Observation, role: str, text: str | None = None) -> Element:
    return next(element for element in observation.elements if element.role == role and text in (None, element.text))


async def solve(session: DesktopSession, task: Task, seed: int) -> list[Transition]:
    """The transitions of an episode of the oracle, which must solve the task; nothing is solved before it begins."""
    observation = await session.reset(task, seed)
    assert observation.instruction and not (await session.evaluate()).success
    transitions: list[Transition] = []
    while not transitions or not (transitions[-1].terminated or transitions[-1].truncated):
        action = await session.oracle_action()
        assert action is not None, f"{task.name}, seed {seed}: no hint after {len(transitions)} steps"
        transitions.append(await session.step(action))
    verdict = await session.evaluate()
    assert verdict.success, f"{task.name}, seed {seed}: {verdict.reasons}"
    assert transitions[-1].terminated and transitions[-1].reward == 1.0
    assert all(transition.reward == 0.0 for transition in transitions[:-1])
    return transitions


@needs_desktop
def test_a_reset_shows_the_instance_and_the_same_one_again() -> None:
    async def use(session: DesktopSession) -> None:
        assert isinstance(session, Session) and session.environment == ""
        first = await session.reset(TASKS["dialog-check"], 3)
        assert first.screenshot is not None and first.elements and first.url == ""
        with Image.open(io.BytesIO(first.screenshot)) as image:
            assert image.format == "PNG" and image.size == (first.width_px, first.height_px) == (1024, 768)
        assert "X.Org" in session.environment and f"{SOURCE} 1" in session.environment
        again = await session.reset(TASKS["dialog-check"], 3)
        assert (again.screenshot_id, again.elements, again.instruction) == (first.screenshot_id, first.elements, first.instruction)
        other = await session.reset(TASKS["dialog-check"], 4)
        assert other.screenshot_id != first.screenshot_id

    on_desktop(use, screenshots=True)


def _same_pixels_twice(name: str, seed: int) -> None:
    """The oracle's episode on two desktops, one after the other: the same screen after every step."""

    async def use(session: DesktopSession) -> list[list[tuple[str | None, float]]]:
        episodes = [await solve(session, TASKS[name], seed) for _ in range(2)]
        return [[(transition.observation.screenshot_id, transition.reward) for transition in episode] for episode in episodes]

    first, second = on_desktop(use, screenshots=True)
    assert first == second and None not in dict(first)


@pytest.mark.slow
@needs_desktop
def test_the_same_actions_give_the_same_pixels_on_another_desktop() -> None:
    _same_pixels_twice("dialog-enter", 1)


@needs_desktop
@pytest.mark.long
@pytest.mark.parametrize("name", load_tasks("small"))
def test_every_small_task_gives_the_same_pixels_again(name: str) -> None:
    _same_pixels_twice(name, 5)


@needs_desktop
def test_what_cannot_be_done_is_said_and_changes_nothing() -> None:
    trials: list[tuple[Action, str]] = [
        (actions.Click(x=2000, y=10), "outside the desktop"),
        (actions.Drag(x=5, y=5, to_x=-3, to_y=10), "outside"),
        (actions.Hotkey(keys=("hyper", "a")), "unknown key"),
        (actions.Navigate(url="http://127.0.0.1/"), "not possible in this desktop"),
        (actions.PressHome(), "not possible"),
        (actions.ToolCall(name="shell"), "not possible"),
        (actions.OpenApp(name="paint"), "no other application can be opened"),
    ]

    async def use(session: DesktopSession) -> None:
        first = await session.reset(TASKS["dialog-enter"].model_copy(update={"max_steps": 20}), 1)
        assert first.screenshot is None and first.screenshot_id is None
        for action, said in trials:
            transition = await session.step(action)
            assert said in transition.info["ignored"] and transition.observation.elements == first.elements
            assert not transition.terminated and transition.reward == 0.0
        transition = await session.step(actions.InvalidAction(text="jump", reason="no such action"))
        assert transition.info == {"invalid": "no such action"} and transition.observation.elements == first.elements
        assert transition.observation.time_ms > first.time_ms

    on_desktop(use)


@needs_desktop
@pytest.mark.slow
def test_an_episode_ends_by_success_by_word_and_by_its_limit() -> None:
    async def use(session: DesktopSession) -> None:
        task = TASKS["dialog-press"]
        observation = await session.reset(task, 1)
        wanted = observation.instruction.split('"')[1]
        button = find(observation, "button", wanted)
        transition = await session.step(actions.Click(x=button.x_px, y=button.y_px))
        assert (transition.reward, transition.terminated, transition.truncated) == (1.0, True, False)
        after = await session.step(actions.Wait(seconds=0.1))
        assert after.info == {"ignored": "the episode is over"} and after.reward == 0.0
        assert await session.oracle_action() is None

        for final in (actions.Finished(answer="done"), actions.CallUser()):
            await session.reset(task, 1)
            transition = await session.step(final)
            assert transition.terminated and transition.reward == 0.0

        observation = await session.reset(task.model_copy(update={"max_steps": 2}), 1)
        wrong = next(e for e in observation.elements if e.role == "button" and e.text not in (wanted, "minimise", "maximise", "close"))
        first = await session.step(actions.Click(x=wrong.x_px, y=wrong.y_px))
        assert not first.terminated and not first.truncated and "button is" in (await session.evaluate()).reasons[0]
        assert session._episode is not None
        await session._episode.desktop.put_file(PurePosixPath(".form.json.answer"), b"[1, 2]")
        assert "not one" in (await session.evaluate()).reasons[0]
        second = await session.step(actions.Wait(seconds=0.1))
        assert second.truncated and not second.terminated and second.reward == 0.0

    on_desktop(use)


@pytest.mark.slow
@needs_desktop
def test_applications_are_opened_by_name() -> None:
    async def use(session: DesktopSession) -> None:
        await session.reset(TASKS["window-close"].model_copy(update={"max_steps": 50}), 1)
        transition = await session.step(actions.OpenApp(name="editor"))
        while not any(element.role == "textarea" for element in transition.observation.elements):
            transition = await session.step(actions.Wait(seconds=0.2))
        assert not transition.truncated

    on_desktop(use)


@pytest.mark.slow
@needs_desktop
def test_the_oracle_repairs_what_a_policy_did() -> None:
    """Text typed into the wrong place, a menu left open, another window in front."""

    async def use(session: DesktopSession) -> None:
        task = TASKS["editor-replace"].model_copy(update={"max_steps": 40})
        observation = await session.reset(task, 2)
        menu = find(observation, "item", "Edit")
        for action in (
            actions.TypeText(text="nonsense\n"),
            actions.OpenApp(name="calculator"),
            actions.Wait(seconds=1.0),
            actions.Click(x=menu.x_px, y=menu.y_px),
        ):
            await session.step(action)
        for _ in range(20):
            action = await session.oracle_action()
            assert action is not None
            if (await session.step(action)).terminated:
                break
        assert (await session.evaluate()).success

    on_desktop(use)


@needs_desktop
def test_misuse_is_reported() -> None:
    async def use(session: DesktopSession) -> None:
        with pytest.raises(SandboxError, match="reset"):
            await session.step(actions.Wait(seconds=1))
        with pytest.raises(TaskError, match="source 'nowhere', which this session does not have"):
            await session.reset(TASKS["dialog-press"].model_copy(update={"source": "nowhere"}), 1)
        await session.close()
        await session.close()
        with pytest.raises(SandboxError, match="closed"):
            await session.reset(TASKS["dialog-press"], 1)

    on_desktop(use)


def test_tasks_are_the_same_everywhere_and_differ_by_seed() -> None:
    assert set(load_tasks("quick")) < set(load_tasks("small")) < set(load_tasks("light")) < set(TASKS) == set(task_file().tasks)
    assert all((task.source, task.domain) == ("desktop", "desktop") for task in TASKS.values())
    for task in TASKS.values():
        instances = [make_instance(task, seed) for seed in range(12)]
        assert len({(instance.instruction, str(instance.files)) for instance in instances}) >= 3, task.name
        for seed, instance in enumerate(instances):
            again = make_instance(task, seed)
            assert (again.instruction, again.files, again.launches) == (instance.instruction, instance.files, instance.launches)
    with pytest.raises(ConfigError, match="no task group 'large'"):
        load_tasks("large")


OTHERS = ("window-maximise", "editor-type", "files-rename", "files-move")


@needs_desktop
@pytest.mark.parametrize("name", ["dialog-check", "terminal-command", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_oracles_solve_tasks(name: str) -> None:
    on_desktop(lambda session: solve(session, TASKS[name], 0))


@needs_desktop
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TASKS)
def test_oracles_solve_every_task_on_three_seeds(name: str) -> None:
    programs = {"calc": "calc", "game": "2048", "notepad": "notepad", "wine": "winemine"}
    lacking = missing_packages([programs.get(name.split("-")[0], "calculator")])
    if lacking:
        pytest.skip(f"apt-get install --no-install-recommends {' '.join(lacking)}")

    async def use(session: DesktopSession) -> None:
        for seed in range(3):
            await solve(session, TASKS[name], seed)

    on_desktop(use)


@needs_desktop
def test_a_verifier_looks_at_state_and_not_at_the_screen() -> None:
    """The right text on the screen that nobody saved, or saved under another name, is not a success."""

    async def use(session: DesktopSession) -> None:
        observation = await session.reset(TASKS["editor-type"], 0)
        wanted = observation.instruction.split('"')[1]
        transition = await session.step(actions.TypeText(text=wanted))
        assert find(transition.observation, "textarea").text == wanted
        assert (await session.evaluate()).reasons == (f"note.txt holds '' and not {wanted!r}",)
        assert session._episode is not None
        await session._episode.desktop.put_file(PurePosixPath("other.txt"), wanted.encode())
        assert not (await session.evaluate()).success

    on_desktop(use)
