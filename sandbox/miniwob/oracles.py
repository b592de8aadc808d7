"""Oracles: for each task the next right action, told from what a policy sees. They make demonstrations and correct a policy's steps.

Which task has which oracle is the dict below; how they work is in oracle_pointing.py, oracle_forms.py, oracle_lists.py and
oracle_shapes.py. That each really solves its task is shown by `python -m sandbox.miniwob.prove`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sandbox.actions import Action
from sandbox.miniwob import oracle_forms as forms
from sandbox.miniwob import oracle_pointing as pointing
from sandbox.miniwob.oracle_screen import Screen
from sandbox.session import Observation
from sandbox.task import Task

Oracle = Callable[[Screen], Action | None]

ORACLES: Mapping[str, Oracle] = {
    # quickstart
    "click-test-2": pointing.button_one,
    "click-button": pointing.quoted_button,
    "click-link": pointing.quoted_link,
    "click-dialog": pointing.close_dialog,
    "click-tab": pointing.named_tab,
    "focus-text-2": pointing.nth_field,
    "click-option": pointing.radio_option,
    "click-checkboxes": pointing.checkboxes,
    "enter-text": forms.quoted_text,
    "login-user": forms.login,
    "click-button-sequence": pointing.button_sequence,
    "click-collapsible-nodelay": pointing.expand_and_submit,
    "simple-arithmetic": forms.arithmetic,
    "use-autocomplete-nodelay": forms.autocomplete,
    "click-dialog-2": pointing.quoted_button,
    "choose-list": forms.choose_from_list,
    "read-table": forms.read_table,
    # unseen
    "click-test": pointing.only_button,
    "focus-text": pointing.only_field,
    "enter-password": forms.password_twice,
    "enter-text-dynamic": forms.quoted_text,
    "click-widget": pointing.widget,
}


def has_oracle(task: Task) -> bool:
    """Whether the task has an oracle."""
    return task.name in ORACLES


def oracle_action(task: Task, observation: Observation, history: Sequence[Action]) -> Action | None:
    """The next right action in any state a policy may have reached, or None where the state is beyond repair or no oracle knows it.

    `history` holds the episode's actions so far, oldest first, whoever chose them.
    """
    oracle = ORACLES.get(task.name)
    if oracle is None or not observation.instruction:
        return None
    return oracle(Screen.of(observation, history))
