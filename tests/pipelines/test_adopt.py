"""`flywheel adopt` at the command line: what it refuses, and what it says loudly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipelines.adopting.making import make_tasks
from pipelines.cli.app import app
from pipelines.cli.tasks import adopt
from sandbox.adopting.adopt import CANDIDATES, PROOFS, Candidates
from sandbox.adopting.records import AdoptedTask, AnswerCheck, Folder, Locator, Proof, Site, Step, TaskSet
from sandbox.adopting.source import split_of
from sandbox.tasks.task import Split
from tests.scripted_model import Model, serving
from warehouse.core.errors import ConfigError
from warehouse.core.locks import FileLock


def site(url: str = "http://127.0.0.1:8001/goods?b=1&a=2", **changed: Any) -> Site:
    options: dict[str, Any] = {
        "writes": False,
        "reset": None,
        "database": None,
        "login_path": None,
        "user": "",
        "delay": 0.2,
        "obeys_robots": True,
    }
    return adopt.site_of(url, **{"name": "shop", **options, **changed})


def test_an_address_is_an_origin_and_a_first_page():
    made = site()
    assert (made.origin, made.start, made.allow_writes) == ("http://127.0.0.1:8001", "/goods?a=2&b=1", False)
    assert adopt.default_name("http://127.0.0.1:8001/") == "site-127-0-0-1-8001"
    assert len(adopt.slug("1" * 60)) <= 41 and site(name=adopt.slug("1" * 60)).name
    assert site("http://127.0.0.1/s?tag=C%2B%2B").start == "/s?tag=C%2B%2B"


@pytest.mark.parametrize("url", ["", "shop", "ftp://127.0.0.1/", "http://", "http://ann:secret@127.0.0.1/", "http://127.0.0.1:99999/"])
def test_what_is_no_address_is_named(url: str):
    with pytest.raises(ConfigError, match="is not an address to adopt"):
        site(url)


def test_options_that_do_not_go_together_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="--database goes with --writes"):
        site(database=tmp_path / "app.db")
    with pytest.raises(ConfigError, match="no such file"):
        site(database=tmp_path / "app.db", writes=True)
    with pytest.raises(ConfigError, match="cannot be read as a command"):
        site(reset="cp 'seed.db")
    with pytest.raises(ConfigError, match="--login-path 'login': give the path"):
        site(login_path="login")
    made = site(login_path="/login", user="ann")
    assert (made.has_login, made.login_path, made.user) == (True, "/login", "ann") and not site().has_login
    with pytest.raises(ConfigError, match="lower-case letters"):
        site(name="My Shop")
    with pytest.raises(ConfigError, match="cook is not a part; parts are crawl, tasks"):
        adopt.parts("crawl,cook")
    assert adopt.parts("tasks, crawl") == ("crawl", "tasks")


def test_writing_and_addresses_elsewhere_are_said_loudly(capsys: pytest.CaptureFixture[str]):
    adopt.warn(site())
    assert capsys.readouterr().out == ""
    adopt.warn(site("http://example.org/", writes=True))
    said = capsys.readouterr().out
    assert "is not on this machine" in said and "WRITE to http://example.org; nothing sets it back" in said


def test_two_commands_do_not_work_in_one_folder(tmp_path: Path):
    lock = FileLock(tmp_path / "adopt.lock")
    assert lock.acquire()
    with pytest.raises(ConfigError, match="Another `flywheel adopt` is at work"), adopt.held(Folder(tmp_path)):
        pass
    lock.release()
    with adopt.held(Folder(tmp_path)), pytest.raises(ConfigError, match=r"no .*candidates\.json"):
        make_tasks(Folder(tmp_path), site(), ("source",), Console(), pages=1, depth=1, tasks=1, sessions=1, login=None, llm=None)
    assert lock.acquire()
    lock.release()


def test_a_log_in_needs_a_password(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(adopt.PASSWORD, raising=False)
    with pytest.raises(ConfigError, match=adopt.PASSWORD):
        adopt.password()


def asked(number: int) -> AdoptedTask:
    """Asks for what is not in its own words."""
    step = Step(do="read", key="/", at=Locator(tag="td", name=str(number)))
    answer = f"{700 + number}"
    return AdoptedTask(
        family="read-value",
        instruction=f'What is "Price" of "Lamp {number}"?',
        start="/",
        checks=(AnswerCheck(text=answer),),
        steps=(step,),
        answer=answer,
    )


def proved(folder: Folder, num_tasks: int) -> list[AdoptedTask]:
    """A folder as the proof leaves it; the last task is not sound. Given are the tasks that training will have."""
    tasks = [asked(number) for number in range(num_tasks)]
    folder.write(CANDIDATES, Candidates(tasks=tuple(tasks), dropped={}, num_changed=0))
    folder.add(PROOFS, *(Proof(task_id=task.task_id, num_steps=1) for task in tasks[:-1]))
    folder.add(PROOFS, Proof(task_id=tasks[-1].task_id, why_not="is solved at the start"))
    return [task for task in tasks[:-1] if split_of(site(), task) is Split.TRAIN]


def test_a_language_model_words_training_tasks_in_other_ways_and_its_nonsense_is_left_out(tmp_path: Path):
    folder = Folder(tmp_path / "shop")
    first, second, third, *others = proved(folder, 12)

    def in_other_words(task: AdoptedTask, *more: str) -> str:
        return json.dumps({"queries": [f"Please look up {task.instruction.split('is ')[1][:-1]}.", *more]})

    given_away = f"Is {first.instruction.split('is ')[1][:-1]} {first.answer}?"
    renamed = first.instruction.replace("Lamp", "lantern")
    answers = [in_other_words(first, given_away, renamed), "sorry, no", in_other_words(third, second.instruction)]
    command = ["adopt", "http://127.0.0.1:8001/", "-o", str(folder.root), "--name", "shop", "--only", "wording,source"]
    with serving(Model(*answers)) as url:
        failed = CliRunner().invoke(app, [*command, "--llm", url, "--llm-model", "tiny"])
    assert failed.exit_code != 0, "the server has no answer for the fourth task"
    model = Model(*map(in_other_words, others))
    with serving(model) as url:
        done = CliRunner().invoke(app, [*command, "--llm", url, "--llm-model", "tiny"])
    assert done.exit_code == 0, done.output
    assert [asked["messages"][-1]["content"] for asked in model.asked] == [task.instruction for task in others], "those answered stay"
    made = folder.read("tasks.json", TaskSet).tasks
    worded = {kept.task.instruction: kept for kept in made if kept.task.instruction.startswith("Please")}
    assert len(worded) == len(others) + 2 and len(made) == 11 + len(worded)
    kept = worded[f'Please look up "Price" of "Lamp {first.steps[0].at.name}".']
    assert kept.split is Split.TRAIN and kept.task.goal == first.goal and kept.task.steps == first.steps
    again = CliRunner().invoke(app, [*command[:-1], "source"])
    assert again.exit_code == 0 and folder.read("tasks.json", TaskSet).tasks == made


def test_an_address_of_a_language_model_goes_with_its_name():
    with pytest.raises(ConfigError, match="go together"):
        adopt.check_llm("http://127.0.0.1:1/v1", "", None)
    with pytest.raises(ConfigError, match="--only wording needs --llm"):
        adopt.check_llm(None, "", "wording,source")
    adopt.check_llm(None, "", "source")
