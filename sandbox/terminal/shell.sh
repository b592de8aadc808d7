# What a session's bash reads first. It takes commands from descriptor 250 and reports on 251, a second way to the terminal, so that
# neither what a command prints nor where it sends its output is taken for a report. The host's side is shell.py.
unset HISTFILE MAILCHECK
PS1= PS2=
exec 251>&1
IFS= read -rd '' -u 250 __shell_nonce
__shell_number=0 __shell_status=0
__shell_next() { # the next command, and the status that the last one left
    IFS= read -rd '' -u 250 __shell_record || exit
    __shell_number=${__shell_record%%;*} __shell_command=${__shell_record#*;}
    return "$__shell_status"
}
__shell_report() {
    __shell_status=$?
    printf '\036%s;%s;%s;%s\036' "$__shell_nonce" "$__shell_number" "$__shell_status" "$PWD" >&251
}
PROMPT_COMMAND=__shell_report
readonly PROMPT_COMMAND __shell_nonce
readonly -f __shell_next __shell_report
