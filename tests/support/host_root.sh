#!/bin/sh
# Make a folder the root of a host and run a command there, as the first process of the host.
#
#   host_root.sh ROOT NAME SOURCE:TARGET… -- COMMAND…
#
# Runs in mount, process and host-name namespaces of its own. Each SOURCE of this machine is there read-only, as
# TARGET; ROOT/hosts is its /etc/hosts. Nothing else of this machine's files can be reached afterwards: the old root is unmounted.
set -eu

root=$1
hostname "$2"
shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
while [ "$1" != -- ]; do
    source=${1%%:*} target=$root${1#*:}
    shift
    if [ -L "$source" ]; then # /bin and /lib are links into /usr on many systems
        [ -L "$target" ] || cp -P "$source" "$target"
        continue
    fi
    mkdir -p "$target"
    mount --bind -o ro "$source" "$target"
done
shift
mount --bind "$root/hosts" "$root/etc/hosts"
mkdir -p "$root/proc" "$root/dev" "$root/tmp" "$root/var"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev"
for device in null zero random urandom; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm"
cd "$root"
pivot_root . .
umount -l .
cd /tmp
exec "$@"
