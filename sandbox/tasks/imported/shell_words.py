"""Which programs a shell script starts, by their names: enough of the shell's grammar to distinguish a program from an argument, a
variable or a pattern. Nothing is run or expanded. Whether a program is there is for osworld_task.py to say.
"""

from __future__ import annotations

import re

KEYWORDS = frozenset(("then", "do", "else", "elif", "if", "while", "until", "!", "{", "time", "}", "fi", "done", "esac"))
"""After these a command may follow."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
MAX_DEPTH = 10
"""Of commands within commands; those deeper are not looked at."""
_ENDS = " \t\n;&|()<>"


def programs(script: str) -> list[str]:
    """Names in the order of the script, each once: functions that the script defines are left out, and names that are made of variables."""
    reader = _Reader(script)
    reader.read()
    return [name for name in dict.fromkeys(reader.names) if name not in reader.functions]


class _Reader:
    def __init__(self, text: str, depth: int = 0) -> None:
        self._text, self._at, self._depth = text, 0, depth
        self.names: list[str] = []
        self.functions: set[str] = set()
        self._heredocs: list[str] = []
        self._num_cases = 0

    def read(self) -> None:
        expects = True
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in " \t":
                self._at += 1
            elif character == "\n":
                self._at += 1
                self._skip_heredocs()
                expects = True
            elif character == "#":
                self._at = self._find("\n")
            elif self._text.startswith(("((", "$(("), self._at):
                self._at = self._find("))") + 2
            elif character in ";&|()":
                expects = not self._text.startswith("&>", self._at) or expects
                self._at += 1
            elif character in "<>":
                self._redirection()
            else:
                expects = self._command_word() if expects else bool(self._word() is None)

    def _command_word(self) -> bool:
        """Reads a word where a command may begin. Whether one may still begin after it."""
        start = self._at
        word = self._word()
        raw = self._text[start : self._at]
        if raw.isdigit() and self._text[self._at : self._at + 1] in ("<", ">"):  # of a redirection
            return True
        if word in KEYWORDS:
            self._num_cases -= word == "esac"
            return True
        if _ASSIGNMENT.match(raw):
            if raw.endswith("=") and self._text.startswith("(", self._at):  # an array
                self._at = self._find(")") + 1
            return True
        if word == "[[":
            self._at = self._find("]]") + 2
        elif word == "case":
            self._num_cases += 1
            self._at = self._find(" in") + 3
            return True
        elif re.match(r"\s*\(\s*\)", self._text[self._at : self._at + 20]):
            self.functions.add(word or "")
        elif self._num_cases and re.match(r"\s*[)|]", self._text[self._at : self._at + 20]) and self._is_pattern():
            return True
        elif word and not {"$", "`", " ", "*"} & set(word):
            self.names.append(word)
        return False

    def _is_pattern(self) -> bool:
        """Whether what was just read stands before the closing parenthesis of a case's pattern."""
        rest = self._text[self._at :].split("\n", 1)[0]
        return bool(re.match(r"[^;(]*\)", rest))

    def _word(self) -> str | None:
        """A word without its quotes; commands that are substituted in it are read as well. None for none."""
        made: list[str] = []
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in _ENDS:
            character = self._text[self._at]
            if character == "\\":
                made.append(self._text[self._at + 1 : self._at + 2])
                self._at += 2
            elif character == "'":
                end = self._find("'", self._at + 1)
                made.append(self._text[self._at + 1 : end])
                self._at = end + 1
            elif character == '"':
                made.append(self._quoted())
            elif character == "$" or character == "`":
                made.append(self._expansion())
            else:
                made.append(character)
                self._at += 1
        return "".join(made) if self._at > start else None

    def _quoted(self) -> str:
        made: list[str] = []
        self._at += 1
        while self._at < len(self._text) and self._text[self._at] != '"':
            if self._text[self._at] == "\\":
                made.append(self._text[self._at + 1 : self._at + 2])
                self._at += 2
            elif self._text[self._at] in "$`":
                made.append(self._expansion())
            else:
                made.append(self._text[self._at])
                self._at += 1
        self._at += 1
        return "".join(made)

    def _expansion(self) -> str:
        """A variable, or a command that is substituted, whose programs count. Always `$`: a word that has it names no program."""
        if self._text.startswith("$((", self._at):
            self._at = self._find("))") + 2
        elif self._text.startswith("$(", self._at):
            self._inside(self._closing(self._at + 2), 2)
        elif self._text.startswith("${", self._at):
            self._at = self._find("}") + 1
        elif self._text[self._at] == "`":
            self._inside(self._find("`", self._at + 1), 1)
        else:
            self._at += 1
        return "$"

    def _inside(self, end: int, num_opening: int) -> None:
        if self._depth < MAX_DEPTH:
            inner = _Reader(self._text[self._at + num_opening : end], self._depth + 1)
            inner.read()
            self.names += inner.names
            self.functions |= inner.functions
        self._at = end + 1

    def _closing(self, start: int) -> int:
        """Where the parenthesis that was opened before `start` is closed; quotes hide parentheses."""
        depth, at = 1, start
        while at < len(self._text):
            character = self._text[at]
            if character == "\\":
                at += 1
            elif character == "'":
                at = self._find("'", at + 1)
            elif character == '"':
                at += 1
                while at < len(self._text) and self._text[at] != '"':
                    at += 2 if self._text[at] == "\\" else 1
            elif character in "()":
                depth += 1 if character == "(" else -1
                if depth == 0:
                    return at
            at += 1
        return len(self._text)

    def _redirection(self) -> None:
        match = re.match(r"<<-?(?!<)\s*(['\"]?)([\w.-]+)\1", self._text[self._at : self._at + 200])
        if match:
            self._heredocs.append(match[2])
            self._at += match.end()
            return
        while self._at < len(self._text) and self._text[self._at] in "<>&|":
            self._at += 1
        if self._text.startswith("(", self._at):  # a process's output in the place of a file
            return
        while self._text.startswith((" ", "\t"), self._at):
            self._at += 1
        self._word()

    def _skip_heredocs(self) -> None:
        for end in self._heredocs:
            while self._at < len(self._text):
                line_end = self._find("\n")
                line, self._at = self._text[self._at : line_end], line_end + 1
                if line.strip() == end:
                    break
        self._heredocs.clear()

    def _find(self, what: str, start: int | None = None) -> int:
        at = self._text.find(what, self._at if start is None else start)
        return len(self._text) if at < 0 else at
