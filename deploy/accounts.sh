#!/bin/sh
# Makes the services' users, and the folders that they write, below the folder $1 (none: of this machine, as the image's build does).
#
# Whoever works on the home is of the group flywheel. The code location owns the home, and all others read it: what is made below a folder
# with the setgid bit is the group's too. In annotation/ the annotation server puts what people gave, and the code location takes it out
# again when somebody is to be forgotten, so the group may write there; the webserver and the daemon have it mounted to read alone.
set -eu
root=${1:-}
mkdir -p "$root/etc" "$root/srv"
printf '%s:x:%s:\n' flywheel 10000 prefect 10005 sandbox 10006 >>"$root/etc/group"
printf '%s:x:%s:%s::/tmp:/usr/sbin/nologin\n' \
    dagster-webserver 10001 10000 \
    dagster-daemon 10002 10000 \
    dagster-code 10003 10000 \
    annotation 10004 10000 \
    prefect 10005 10005 \
    sandbox 10006 10006 >>"$root/etc/passwd"
install -d -m 2750 -o 10003 -g 10000 "$root/srv/flywheel"
install -d -m 2770 -o 10004 -g 10000 "$root/srv/flywheel/annotation"
install -d -m 0700 -o 10005 -g 10005 "$root/srv/prefect"
install -d -m 0700 -o 10006 -g 10006 "$root/srv/sandbox"
