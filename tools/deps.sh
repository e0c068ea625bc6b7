#!/bin/sh
# deps.sh PACKAGE ... -- install the Debian packages that are missing; says nothing when none are.
set -eu
missing=
for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "lineshaft: these packages are missing and apt-get is not here:$missing" >&2
    exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
    sudo=$(command -v sudo) || {
        echo "lineshaft: run as root, or install sudo, or install by hand:$missing" >&2
        exit 1
    }
fi
echo "  apt   $missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
# shellcheck disable=SC2086
if ! { $sudo apt-get install -y --no-install-recommends $missing >"$log" 2>&1 ||
       { $sudo apt-get update >"$log" 2>&1 &&
         $sudo apt-get install -y --no-install-recommends $missing >>"$log" 2>&1; }; }; then
    tail -n 20 "$log" >&2
    echo "lineshaft: apt-get could not install:$missing" >&2
    rm -f "$log"
    exit 1
fi
rm -f "$log"
