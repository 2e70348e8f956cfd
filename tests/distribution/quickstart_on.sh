#!/usr/bin/env bash
# tools/quickstart.sh on another Debian or Ubuntu, from nothing: the last commit of this checkout, in a root of its own that
# debootstrap makes.
#
#   tests/distribution/quickstart_on.sh debian/trixie /var/tmp/trixie     as root; 4 GB and about twenty minutes on two cores
#   tests/distribution/quickstart_on.sh ubuntu/noble /var/tmp/noble
#
# The folder stays, and a second run goes on in it (so it is quick). Packages, compilers and libraries are those of that system: what
# it has renamed or changed shows here first.
set -euo pipefail
[ $# -eq 2 ] && [ "$(id -u)" -eq 0 ] && command -v debootstrap >/dev/null ||
  { echo "usage, as root, with the package debootstrap: $0 debian/SUITE|ubuntu/SUITE FOLDER" >&2; exit 64; }
here=$(cd "$(dirname "$0")/../.." && pwd)
root=$(realpath -m "$2")
suite=${1#*/}
keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg

make_root() {
  local options=(--variant=minbase --include=ca-certificates,git)
  case "$1" in
    debian/*) debootstrap "${options[@]}" "$suite" "$root" http://deb.debian.org/debian ;;
    ubuntu/*)
      if [ -e "$keyring" ]; then
        options+=(--keyring="$keyring")
      else
        echo "$keyring is not here: packages are taken without their signatures" >&2
        options+=(--no-check-gpg)
      fi
      # all its suites are made by one script
      debootstrap "${options[@]}" --components=main,universe "$suite" "$root" http://archive.ubuntu.com/ubuntu gutsy ;;
    *) echo "$1 is neither debian/SUITE nor ubuntu/SUITE" >&2; exit 64 ;;
  esac
}

[ -e "$root/usr/bin/git" ] || make_root "$1"
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
