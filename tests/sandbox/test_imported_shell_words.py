"""Which words of a script are programs."""

from __future__ import annotations

import pytest

from sandbox.tasks.imported.shell_words import programs


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("ps aux | grep x", ["ps", "grep"]),
        ('output=$(ps aux | grep "[s]office" | awk \'{print $7}\'); if [ -z "$output" ]; then ls; fi', ["ps", "grep", "awk", "[", "ls"]),
        ("cd /a; git log --oneline | head -n 1; id=$(git log | awk '{print $1}')", ["cd", "git", "head", "awk"]),
        ("history -c", ["history"]),
        ('TEXT=$(timeout 10 gsettings get a b 2>/dev/null | head -1); [ -n "$TEXT" ]', ["timeout", "head", "["]),
        ('A=1 B="x y" env && C=$D ls', ["env", "ls"]),
        ("echo 'rm; sudo x' \"a $(date) `id -u`\"", ["date", "id", "echo"]),
        ("for f in a b; do cp $f c; done", ["for", "cp"]),
        ("while read -r line; do wc <<< $line; done < in.txt 2>&1 | sort > out.txt", ["read", "wc", "sort"]),
        ("f() { mv a b; }; f; g", ["mv", "g"]),
        ("case $x in a|b) touch y;; *) ls;; esac; wc", ["touch", "ls", "wc"]),
        ("cat <<'EOF' > a.txt\nsudo rm\nEOF\nls", ["cat", "ls"]),
        ("[[ a == b && c < d ]] || ls; (( x < 3 )) && wc", ["ls", "wc"]),
        ("# sudo\nls # wc", ["ls"]),
        ("names=(sudo rm) ; ls", ["ls"]),
        ('"/bin/cat" x; $HOME/run; \\ls', ["/bin/cat", "ls"]),
        ("(cd a && ls) & wc", ["cd", "ls", "wc"]),
        ("diff <(sort a) <(uniq b)", ["diff", "sort", "uniq"]),
        ("! grep -q x f && { true; }", ["grep", "true"]),
        ("echo $(( 1 + 2 )) $(echo $(date))", ["date", "echo"]),
    ],
)
def test_programs_are_distinguished_from_other_words(script: str, expected: list[str]) -> None:
    assert sorted(programs(script)) == sorted(expected)


@pytest.mark.parametrize(
    "script", ["'", '"', "$(", "`", "${", "<<EOF", "case x in", "[[", "((", "a=(", "\\", '"$(', "f()", "<(", "$((", "$"]
)
def test_what_is_cut_short_comes_to_an_end(script: str) -> None:
    for text in (script, f"ls {script}", script * 300):
        programs(text)
