"""Oracles: for each task the next right action, from what a policy sees. They make demonstrations and correct a policy's steps.

Which task has which oracle is the dict below; how they work is in oracle_pointing.py, oracle_forms.py, oracle_widgets.py,
oracle_lists.py and oracle_shapes.py. That each really solves its task is shown by `python -m sandbox.tasks.prove miniwob`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sandbox.actions import Action
from sandbox.session import Observation
from sandbox.tasks.miniwob import oracle_forms as forms
from sandbox.tasks.miniwob import oracle_lists as lists
from sandbox.tasks.miniwob import oracle_pointing as pointing
from sandbox.tasks.miniwob import oracle_shapes as shapes
from sandbox.tasks.miniwob import oracle_widgets as widgets
from sandbox.tasks.miniwob.oracle_screen import Lost, Screen
from sandbox.tasks.task import Task

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
    # pointing
    "button-delay": pointing.wait_between,
    "buy-ticket": pointing.ticket,
    "click-checkboxes-large": pointing.checkboxes,
    "click-checkboxes-soft": pointing.similar_checkboxes,
    "click-checkboxes-transfer": pointing.checkboxes,
    "click-collapsible-2-nodelay": pointing.find_link_in_sections,
    "click-color": shapes.coloured_box,
    "click-menu": pointing.menu_path,
    "click-menu-2": pointing.icon_menu,
    "click-shades": shapes.shades,
    "click-shape": shapes.shape_described,
    "click-tab-2": pointing.find_link_in_tabs,
    "click-tab-2-easy": pointing.find_link_in_tabs,
    "click-tab-2-hard": pointing.find_link_in_tabs,
    "click-tab-2-medium": pointing.find_link_in_tabs,
    "count-shape": shapes.count_shapes,
    "drag-box": shapes.small_box_into_large,
    "drag-circle": shapes.drag_towards,
    "drag-items": shapes.move_item,
    "drag-items-grid": shapes.move_grid_item,
    "drag-shapes": shapes.into_the_box,
    "drag-shapes-2": shapes.into_two_boxes,
    "drag-single-shape": shapes.drag_towards,
    "drag-sort-numbers": shapes.sort_numbers,
    "email-inbox-delete": lists.mail,
    "email-inbox-important": lists.mail,
    "generate-number": pointing.generate_number,
    "grid-coordinate": shapes.grid_point,
    "highlight-text": widgets.highlight,
    "highlight-text-2": widgets.highlight,
    "identify-shape": shapes.identify_shape,
    "navigate-tree": lists.folder,
    "number-checkboxes": pointing.draw_digit,
    "odd-or-even": pointing.odd_or_even,
    "order-food": lists.order_food,
    "phone-book": lists.contact,
    "resize-textarea": shapes.resize,
    "scroll-text-2": shapes.scroll_to_end,
    "social-media": lists.post_button,
    "social-media-all": lists.mark_posts,
    "social-media-some": lists.mark_posts,
    "stock-market": pointing.buy_low,
    "tic-tac-toe": pointing.tic_tac_toe,
    "unicode-test": pointing.quoted_button,
    # forms
    "choose-date-easy": widgets.pick_date,
    "choose-date-medium": widgets.pick_date,
    "choose-date-nodelay": widgets.pick_date,
    "click-scroll-list": widgets.scroll_list,
    "copy-paste": forms.copy_text,
    "copy-paste-2": forms.copy_text,
    "email-inbox": lists.mail,
    "email-inbox-forward": lists.mail,
    "email-inbox-forward-nl": lists.forward_in_words,
    "email-inbox-noscroll": lists.mail,
    "email-inbox-reply": lists.mail,
    "email-inbox-star-reply": lists.mail,
    "enter-date": widgets.typed_date,
    "enter-text-2": forms.changed_case,
    "enter-time": widgets.typed_time,
    "find-word": forms.nth_word,
    "form-sequence": widgets.slider_and_checkbox,
    "form-sequence-2": widgets.radio_and_textbox,
    "form-sequence-3": widgets.dropdown_and_button,
    "guess-number": widgets.guess_number,
    "login-user-popup": forms.login_with_popup,
    "multi-layouts": forms.movie_search,
    "multi-orderings": forms.movie_search,
    "read-table-2": forms.table_into_form,
    "scroll-text": forms.last_word,
    "search-engine": lists.search_result,
    "sign-agreement": forms.agreement,
    "simple-algebra": forms.algebra,
    "text-transform": forms.shown_letters,
    "use-slider": widgets.sliders,
    "use-slider-2": widgets.sliders,
    "use-spinner": widgets.spinner,
    "visual-addition": forms.count_blocks,
}


def has_oracle(task: Task) -> bool:
    """Whether the task has an oracle."""
    return task.name in ORACLES


def oracle_action(task: Task, observation: Observation, history: Sequence[Action]) -> Action | None:
    """The next right action in any state a policy may have reached, or None where the state is beyond repair or no oracle knows it.

    `history` holds the episode's actions so far, oldest first, from any policy.
    """
    oracle = ORACLES.get(task.name)
    if oracle is None or not observation.instruction:
        return None
    try:
        return oracle(Screen.of(observation, history))
    except Lost:
        return None
