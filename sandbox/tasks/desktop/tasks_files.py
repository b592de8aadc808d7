"""Tasks in the file manager (PCManFM)."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePosixPath

from sandbox.actions import Action, TypeText
from sandbox.desktop.desktop import Desktop, Window
from sandbox.desktop.instance import DesktopStepContext, Instance, Launch, Oracle, Verify, click, press, raise_window
from sandbox.tasks.desktop.words import NOUNS, file_names

MANAGER = "Pcmanfm"


def new_folder(rng: random.Random) -> Instance:
    name, *others = rng.sample(NOUNS, 3)
    files = _texts(f"{other}.txt" for other in others)

    def oracle(context: DesktopStepContext) -> Action | None:
        dialog = _dialog(context)
        return _enter_name(context, dialog, name) if dialog else _in_manager(context) or press("shift", "ctrl", "n")

    return _instance(f'Create a folder named "{name}" in the file manager.', files, tree_is(files, folders=[name]), oracle)


def rename(rng: random.Random) -> Instance:
    old, new, *others = file_names(rng, 4)
    files = _texts([old, *others])

    def oracle(context: DesktopStepContext) -> Action | None:
        dialog = _dialog(context)
        if dialog:
            return _enter_name(context, dialog, new)
        return _in_manager(context) or _with_chosen(context, old, press("f2"))

    wanted = {PurePosixPath(new) if path.name == old else path: content for path, content in files.items()}
    return _instance(f'Rename the file "{old}" to "{new}" in the file manager.', files, tree_is(wanted), oracle)


def delete(rng: random.Random) -> Instance:
    gone, *others = file_names(rng, 4)
    files = _texts(rng.sample([gone, *others], 4))

    def oracle(context: DesktopStepContext) -> Action | None:
        if _dialog(context):
            return press("enter")
        return _in_manager(context) or _with_chosen(context, gone, press("shift", "delete"))

    wanted = {path: content for path, content in files.items() if path.name != gone}
    return _instance(f'Delete the file "{gone}" in the file manager.', files, tree_is(wanted), oracle)


def move(rng: random.Random) -> Instance:
    """Into a folder, by cutting and pasting."""
    name, other = file_names(rng, 2)
    folder = rng.choice([noun for noun in NOUNS if f"{noun}.txt" not in (name, other)])
    files = {**_texts([name, other]), PurePosixPath(folder, "old.txt"): b"old\n"}

    def oracle(context: DesktopStepContext) -> Action | None:
        if _dialog(context):
            return press("escape")
        if (first := _in_manager(context)) is not None:
            return first
        is_cut = press("ctrl", "x") in context.actions
        manager = context.window(rf"^({folder}|user)$")
        if manager is not None and manager.title == folder:
            return press("ctrl", "v") if is_cut else press("alt", "up")
        if is_cut:
            return click(context.find("item", folder), count=2)
        return _with_chosen(context, name, press("ctrl", "x"))

    wanted = {PurePosixPath(folder, path.name) if path.name == name else path: content for path, content in files.items()}
    return _instance(f'Move the file "{name}" into the folder "{folder}" in the file manager.', files, tree_is(wanted, [folder]), oracle)


def tree_is(files: Mapping[PurePosixPath, bytes], folders: Collection[str] = ()) -> Verify:
    """That the home shows exactly these files, with these contents, and these folders."""

    async def verify(desktop: Desktop) -> list[str]:
        entries = await desktop.list_files()
        found_folders = sorted(str(entry.path) for entry in entries if entry.is_folder)
        found = {entry.path: await desktop.get_file(entry.path) for entry in entries if not entry.is_folder}
        problems = [] if found_folders == sorted(folders) else [f"folders are {found_folders} and not {sorted(folders)}"]
        problems += [f"{path} is missing" for path in files if path not in found]
        problems += [f"{path} is there and should not be" for path in found if path not in files]
        return problems + [f"{path} has other contents" for path in found if path in files and found[path] != files[path]]

    return verify


def _texts(names: Iterable[str]) -> dict[PurePosixPath, bytes]:
    return {PurePosixPath(name): f"{name}\n".encode() for name in names}


def _instance(instruction: str, files: Mapping[PurePosixPath, bytes], verify: Verify, oracle: Oracle) -> Instance:
    return Instance(instruction=instruction, files=files, launches=(Launch(app="files"),), verify=verify, oracle=oracle)


def _dialog(context: DesktopStepContext) -> Window | None:
    """A dialog of the file manager that has the keyboard: it has no menus."""
    top = context.top
    return top if top and top.window_class == MANAGER and context.find("item", "Bookmarks", within=top) is None else None


def _in_manager(context: DesktopStepContext) -> Action | None:
    """What brings the file manager to the top; None where it is."""
    top = context.top
    if top is not None and top.window_class == MANAGER:
        return None
    manager = next((window for window in context.windows if window.window_class == MANAGER), None)
    return raise_window(context, manager) if manager else None


def _with_chosen(context: DesktopStepContext, name: str, then: Action) -> Action | None:
    """What is to be done with a file, once it is chosen by a click. None where the file does not show."""
    item = context.find("item", name)
    return then if item is not None and "selected" in item.states else click(item)


def _enter_name(context: DesktopStepContext, dialog: Window, name: str) -> Action | None:
    """Into the entry of a small dialog, and Enter."""
    field = context.find("input", within=dialog)
    if field is None:
        return press("escape")
    if field.text == name:
        return press("enter")
    if "focused" not in field.states:
        return click(field)
    return TypeText(text=name) if not field.text or "selected" in field.states else press("ctrl", "a")
