#!/usr/bin/env bash
# Builds the small Debian machine that sandbox/desktop/qemu.py boots: DIRECTORY/{root.img,vmlinuz,initrd.img}. As root, in a few minutes;
# does nothing where it is there already and was built by this very script. What the machine runs beside its screen, the guest agent,
# is not in the image: the provider hands it over on a second disk at boot (see /etc/flywheel/boot below).
#
#   scripts/build-vm-image.sh DIRECTORY
#
#   DEBIAN_MIRROR   where the packages come from (else the mirror that apt on this machine has in its sources)
set -euo pipefail

release=bookworm
size_mib=2048
packages=(
    # a kernel for virtual machines, and what the init scripts below use
    linux-image-cloud-amd64 initramfs-tools busybox-static iproute2 util-linux procps
    # what sandbox/desktop/inside needs, and the light applications of sandbox/desktop/apps.py
    python3 python3-gi gir1.2-atspi-2.0 gir1.2-gtk-3.0 at-spi2-core libatk-adaptor libgail-common dbus dbus-bin dbus-daemon
    dbus-session-bus-common xvfb libxcb-randr0 libxcb-shm0 libxcb-xfixes0 openbox fonts-dejavu-core adwaita-icon-theme
    mousepad pcmanfm lxterminal galculator xterm gnome-2048 gnome-mines
)
python_packages=(mss==10.2.0 python-xlib==0.33 six==1.17.0) # pure Python; Debian's are older than those on the host

directory=${1:?usage: scripts/build-vm-image.sh DIRECTORY}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
stamp=$directory/built-by
this=$(cksum <"${BASH_SOURCE[0]}")

say() { echo "vm-image: $*"; }
die() { echo "vm-image: $*" >&2; exit 1; }

exec 9>"$directory/lock"
flock 9 # two builds of one image wait for each other, and the second has nothing left to do
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$this" ]; then
    say "is there already: $directory"
    exit 0
fi
[ "$(id -u)" = 0 ] || die "needs root, for debootstrap and chroot."
for tool in debootstrap mke2fs unshare python3; do
    command -v "$tool" >/dev/null || die "there is no $tool. On Debian: apt-get install debootstrap e2fsprogs util-linux python3"
done
[ -f "$keyring" ] || die "there is no $keyring to check packages by. On Debian: apt-get install debian-archive-keyring"
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -m1 '/debian/\?$' || true)}
[ -n "$mirror" ] || die "apt on this machine knows no mirror of Debian. Name one: DEBIAN_MIRROR=http://.../debian $0 $directory"

rm -f "$stamp"
root=$directory/root
rm -rf "$root"
trap 'rm -rf "$root"' EXIT

say "debootstrap $release"
debootstrap --variant=minbase --keyring="$keyring" "$release" "$root" "$mirror" >"$directory/build.log" 2>&1 ||
    die "debootstrap failed; see $directory/build.log"

# Services stay off while packages are set up, and the initial RAM disk holds three drivers and no more.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"
mkdir -p "$root/etc/initramfs-tools/conf.d"
printf 'MODULES=list\nCOMPRESS=gzip\n' >"$root/etc/initramfs-tools/conf.d/flywheel"
printf 'virtio_pci\nvirtio_blk\next4\n' >"$root/etc/initramfs-tools/modules"

say "packages"
cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
for file in /etc/apt/apt.conf.d/*proxy*; do [ ! -f "$file" ] || cp "$file" "$root/etc/apt/apt.conf.d/"; done
# a mount and a process namespace of their own: what a package starts ends here, what it mounts is seen nowhere else
unshare --mount --pid --fork --kill-child chroot "$root" sh -euc '
    mount -t proc proc /proc
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C
    apt-get install -y --no-install-recommends --no-install-suggests "$@"
    apt-get clean
' apt "${packages[@]}" >>"$directory/build.log" 2>&1 </dev/null || die "installing packages failed; see $directory/build.log"
python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps --target "$root/opt/python" \
    "${python_packages[@]}" >>"$directory/build.log" 2>&1 ||
    die "pip could not get ${python_packages[*]}; see $directory/build.log"

say "set-up"
rm -f "$root/etc/resolv.conf" "$root/usr/sbin/policy-rc.d" "$root"/etc/apt/apt.conf.d/*proxy*
rm -rf "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}/*
# what programs would else make at every start, each time again: a second on a host's processor is ten on an emulated one
chroot "$root" python3 -m compileall -q /opt/python >>"$directory/build.log" 2>&1
chroot "$root" fc-cache --system-only >>"$directory/build.log" 2>&1
chroot "$root" useradd --create-home --shell /bin/bash --uid 1000 user
echo flywheel >"$root/etc/hostname"
printf '127.0.0.1 localhost flywheel\n' >"$root/etc/hosts"
echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
ln -sf /bin/busybox "$root/sbin/init"
cat >"$root/etc/inittab" <<'INITTAB'
::sysinit:/etc/flywheel/boot
::once:/bin/setpriv --reuid=1000 --regid=1000 --init-groups /opt/flywheel/start
::ctrlaltdel:/bin/busybox poweroff
INITTAB
mkdir -p "$root/etc/flywheel" "$root/opt/flywheel"
cat >"$root/etc/flywheel/boot" <<'BOOT'
#!/bin/sh
# Once, as root: file systems, the network card, and the second disk, a tar archive with the guest agent, its token, and `start`.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mountpoint -q /proc || mount -t proc proc /proc
mountpoint -q /sys || mount -t sysfs sys /sys
mountpoint -q /dev || mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -o remount,rw /
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /tmp/.X11-unix /tmp/run
chmod 1777 /tmp/.X11-unix
chown user:user /tmp/run
chmod 700 /tmp/run
hostname -F /etc/hostname
modprobe virtio_net
ip link set lo up
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
tar -xf /dev/vdb -C /opt/flywheel --no-same-owner
chown user /opt/flywheel/token
chmod 400 /opt/flywheel/token
BOOT
chmod +x "$root/etc/flywheel/boot"

say "disk"
cp "$root"/boot/vmlinuz-* "$directory/vmlinuz"
cp "$root"/boot/initrd.img-* "$directory/initrd.img"
rm -f "$root"/boot/* "$directory/root.img"
mke2fs -q -t ext4 -L root -d "$root" "$directory/root.img" "${size_mib}M" >>"$directory/build.log" 2>&1 ||
    die "mke2fs failed; see $directory/build.log"
chmod 444 "$directory/root.img"
echo "$this" >"$stamp"
say "done: $directory ($(du -sh "$directory/root.img" | cut -f1))"
