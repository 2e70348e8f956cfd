#!/bin/sh
# Create the Python environment that the exporters and the PyTorch reference run in, and print its interpreter.
#
# usage: setup.sh
#
# The environment is made in $PIPESHARD_EXPORT_VENV (default: ~/.cache/pipeshard/export-venv) and reused when it
# already holds what requirements.txt asks for. It takes a few gigabytes; delete the folder to be rid of it. Packages
# come from whatever index pip is configured for. PYTHON chooses the interpreter to start from (default: python3).
set -eu

case "${1-}" in
  "") ;;
  -h|--help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "setup.sh: takes no arguments; see setup.sh --help" >&2; exit 64 ;;
esac

here=$(cd "$(dirname "$0")" && pwd)
venv=${PIPESHARD_EXPORT_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/pipeshard/export-venv}
stamp=$venv/requirements.installed

if ! cmp -s "$here/requirements.txt" "$stamp"; then
  "${PYTHON:-python3}" -m venv "$venv" || {
    echo "setup.sh: cannot create $venv; Debian needs the package python3-venv" >&2; exit 69; }
  "$venv/bin/python" -m pip install --quiet --requirement "$here/requirements.txt" >&2
  cp "$here/requirements.txt" "$stamp"
fi
echo "$venv/bin/python"
