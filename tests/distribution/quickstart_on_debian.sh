#!/usr/bin/env bash
# tools/quickstart.sh on another Debian, from nothing: the last commit of this checkout, in a root of its own that debootstrap makes.
#
#   tests/distribution/quickstart_on_debian.sh trixie /var/tmp/trixie     as root; 4 GB and about twenty minutes on two cores
#
# The folder stays, and a second run goes on in it (so it is quick). Packages, compilers and libraries are those of that Debian: what
# it has renamed or changed shows here first.
set -euo pipefail
[ $# -eq 2 ] && [ "$(id -u)" -eq 0 ] && command -v debootstrap >/dev/null ||
  { echo "usage, as root, with the package debootstrap: $0 SUITE FOLDER" >&2; exit 64; }
here=$(cd "$(dirname "$0")/../.." && pwd)
root=$(realpath -m "$2")
if [ ! -e "$root/usr/bin/git" ]; then
  debootstrap --variant=minbase --include=ca-certificates,git "$1" "$root" http://deb.debian.org/debian
fi
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
[ -d "$root/root/pipeshard" ] || git clone -q "$here" "$root/root/pipeshard"
git -C "$root/root/pipeshard" fetch -q "$here" HEAD
git -C "$root/root/pipeshard" checkout -q FETCH_HEAD

# In a namespace of mounts, which go with it.
exec unshare --mount bash -euc "
  mount -t proc proc '$root/proc'
  mount --rbind /dev '$root/dev'
  exec chroot '$root' env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 /root/pipeshard/tools/quickstart.sh"
