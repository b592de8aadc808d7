"""The simulated device's commands: `input`, `screencap`, `uiautomator`, `am`, `pm`, `settings` and their kin, on the state of screen.py.
NOT Android's programs: each knows the few forms that the sandbox uses and refuses every other, so that a wrong form fails its test.
The console of an emulator, for snapshots, is here too. Who calls them is device.py.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable

from tests.sandbox.android_device.screen import CONTACTS, SETTINGS, SIZE_PX, Phone

Output = tuple[int, bytes, str]
"""Exit code, stdout, stderr."""

PROVIDER = "com.android.providers.contacts"
PACKAGES = (SETTINGS, CONTACTS, PROVIDER)
LAUNCHABLE = (SETTINGS, CONTACTS)
PROPERTIES = {
    "ro.product.model": "Simulated",
    "ro.build.version.release": "14",
    "ro.build.version.incremental": "sim-1",
    "sys.boot_completed": "1",
}
LAUNCHER_CATEGORY = "android.intent.category.LAUNCHER"
CONSOLE_TOKEN = "simulated-token"
NAME_TYPE, PHONE_TYPE = "vnd.android.cursor.item/name", "vnd.android.cursor.item/phone_v2"


class BadCommand(Exception):
    """A form that the simulation does not know."""


OLD_INPUT = "simulated_old_input"
"""A setting that a test puts to 1: this device's `input` knows no combinations of keys."""


class Commands:
    def __init__(self) -> None:
        self.phone = Phone()
        self.snapshots: dict[str, Phone] = {}
        self.log: list[list[str]] = []
        self._programs: dict[str, Callable[[list[str]], str | bytes]] = {
            "input": self._input,
            "screencap": self._screencap,
            "uiautomator": self._uiautomator,
            "am": self._am,
            "pm": self._pm,
            "settings": self._settings,
            "content": self._content,
            "wm": self._wm,
            "cmd": self._cmd,
            "svc": self._svc,
            "getprop": self._getprop,
            "fakelog": self._fakelog,
        }

    def run(self, argv: list[str]) -> Output:
        name, *arguments = argv
        if name != "fakelog":
            self.log.append(argv)
        try:
            out = self._programs[name](arguments)
        except BadCommand as error:
            return 1, b"", f"Error: {error}\n"
        except (IndexError, ValueError, KeyError) as error:
            return 255, b"", f"Error: {argv} is not simulated ({error!r})\n"
        return 0, out if isinstance(out, bytes) else out.encode(), ""

    def _input(self, arguments: list[str]) -> str:
        match arguments:
            case ["tap", x, y]:
                self.phone.tap(int(x), int(y))
            case ["swipe", x, y, to_x, to_y, duration_ms]:
                self.phone.swipe(int(x), int(y), int(to_x), int(to_y), int(duration_ms))
            case ["text", text]:
                if not text.isascii():
                    raise BadCommand("java.lang.NullPointerException: Attempt to get length of null array")
                self.phone.type(text.replace("%s", " "))
            case ["keyevent", name]:
                self.phone.key(name.removeprefix("KEYCODE_"))
            case ["keycombination", *names] if self.phone.get("global", OLD_INPUT) != "1":
                self.phone.combine([name.removeprefix("KEYCODE_") for name in names])
            case _:
                raise BadCommand(f"Unknown command: input {arguments}")
        return ""

    def _screencap(self, arguments: list[str]) -> bytes:
        if arguments != ["-p"]:
            raise BadCommand(f"screencap {arguments}")
        return self.phone.png()

    def _uiautomator(self, arguments: list[str]) -> bytes:
        """The shim writes what this gives into the file."""
        if len(arguments) != 2 or arguments[0] != "dump":
            raise BadCommand(f"uiautomator {arguments}")
        return self.phone.dump().encode()

    def _am(self, arguments: list[str]) -> str:
        match arguments:
            case ["force-stop", package]:
                self.phone.stop(package)
            case ["start", "-W", "-a", "android.intent.action.MAIN", "-c", category, "-f", "0x10200000", "-n", name]:
                package = name.partition("/")[0]
                if package not in LAUNCHABLE or category != LAUNCHER_CATEGORY:
                    raise BadCommand(f"Activity class {{{name}}} does not exist.")
                self.phone.launch(package)
                return "Status: ok\nComplete\n"
            case ["stack", "list"]:
                shown = f"{self.phone.package}/{self.phone.package}.Main"
                return (
                    f"RootTask id=1 bounds=[0,0][720,1280] displayId=0 userId=0\n  taskId=2: {shown} bounds=[0,0][720,1280] userId=0 "
                    f"visible=true topActivity=ComponentInfo{{{shown}}}\n"
                )
            case ["broadcast", "-a", action, *_]:
                return f"Broadcasting: Intent {{ act={action} }}\nBroadcast completed: result=0\n"
            case _:
                raise BadCommand(f"am {arguments}")
        return ""

    def _pm(self, arguments: list[str]) -> str:
        match arguments:
            case ["clear", package] if package in PACKAGES:
                self.phone.stop(package)
                if package == PROVIDER:
                    self.phone.contacts, self.phone.last_contact = {}, 0
                return "Success\n"
            case ["clear", _]:
                raise BadCommand("Failed")
            case _:
                raise BadCommand(f"pm {arguments}")

    def _settings(self, arguments: list[str]) -> str:
        match arguments:
            case ["get", space, key]:
                return self.phone.get(space, key) + "\n"
            case ["put", space, key, value]:
                self.phone.settings[space, key] = value
            case ["delete", space, key]:
                self.phone.settings.pop((space, key), None)
            case _:
                raise BadCommand(f"settings {arguments}")
        return ""

    def _content(self, arguments: list[str]) -> str:
        uri = arguments[arguments.index("--uri") + 1]
        binds = [arguments[n + 1].split(":", 2) for n, argument in enumerate(arguments) if argument == "--bind"]
        values = {key: value for key, _, value in binds}
        match arguments[0], uri.removeprefix("content://com.android.contacts/"):
            case "insert", "raw_contacts":
                self.phone.last_contact += 1
                self.phone.contacts[self.phone.last_contact] = {"name": "", "phone": ""}
            case "insert", "data":
                column = {NAME_TYPE: "name", PHONE_TYPE: "phone"}[values["mimetype"]]
                self.phone.contacts[int(values["raw_contact_id"])][column] = values["data1"]
            case "query", "data/phones":
                rows = [
                    f"Row: {number} display_name={entry['name']}, data1={entry['phone']}"
                    for number, entry in enumerate(self.phone.contacts.values())
                ]
                return "\n".join(rows or ["No result found."]) + "\n"
            case _:
                raise BadCommand(f"content {arguments}")
        return ""

    def _wm(self, arguments: list[str]) -> str:
        match arguments:
            case ["size"]:
                return f"Physical size: {SIZE_PX[0]}x{SIZE_PX[1]}\n"
            case ["dismiss-keyguard"]:
                self.phone.is_locked = not self.phone.is_awake
            case _:
                raise BadCommand(f"wm {arguments}")
        return ""

    def _cmd(self, arguments: list[str]) -> str:
        match arguments:
            case ["package", "query-activities", "--brief", *_]:
                return f"{len(LAUNCHABLE)} activities found:\n" + "".join(f"  {package}/.Main\n" for package in LAUNCHABLE)
            case ["connectivity", "airplane-mode", change]:
                self.phone.settings["global", "airplane_mode_on"] = {"enable": "1", "disable": "0"}[change]
            case ["uimode", "night", mode]:
                self.phone.settings["secure", "ui_night_mode"] = {"yes": "2", "no": "1"}[mode]
            case _:
                raise BadCommand(f"cmd {arguments}")
        return ""

    def _svc(self, arguments: list[str]) -> str:
        if arguments[0] not in ("wifi", "bluetooth"):
            raise BadCommand(f"svc {arguments}")
        self.phone.settings["global", f"{arguments[0]}_on"] = {"enable": "1", "disable": "0"}[arguments[1]]
        return ""

    def _getprop(self, arguments: list[str]) -> str:
        return PROPERTIES.get(arguments[0], "") + "\n"

    def _fakelog(self, arguments: list[str]) -> str:
        """For tests: the commands so far, as JSON lines, and forget them."""
        lines, self.log = self.log, []
        return "".join(json.dumps(line) + "\n" for line in lines)

    # --- the emulator's console

    def console(self, line: str, is_allowed: bool) -> str:
        if line == f"auth {CONSOLE_TOKEN}":
            return "OK"
        if not is_allowed:
            return "KO: unknown command, try 'help'"
        if match := re.fullmatch(r"avd snapshot save (\S+)", line):
            self.snapshots[match[1]] = copy.deepcopy(self.phone)
            return "OK"
        if match := re.fullmatch(r"avd snapshot load (\S+)", line):
            if match[1] not in self.snapshots:
                return f"KO: no snapshot of name '{match[1]}'"
            self.phone = copy.deepcopy(self.snapshots[match[1]])
            return "OK"
        return "KO: unknown command"
