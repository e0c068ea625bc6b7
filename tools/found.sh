#!/bin/sh
# found.sh [--quiet] CC "LIBRARIES" -- print what the build found and what that enables; fail with
# the names of the Debian packages when something it cannot do without is missing.
set -eu
quiet=false
if [ "$1" = --quiet ]; then
    quiet=true
    shift
fi
cc=$1 # may have words before the compiler: ccache gcc
libraries=$2

# The package that brings a library, by its pkg-config name.
package_of() {
    case $1 in
    yaml-0.1) echo libyaml-dev ;;
    zlib) echo zlib1g-dev ;;
    libpcre2-8) echo libpcre2-dev ;;
    libcrypto | libssl) echo libssl-dev ;;
    sqlite3) echo libsqlite3-dev ;;
    lib*) echo "$1-dev" ;;
    *) echo "lib$1-dev" ;;
    esac
}

packages=
tell() { # tell PACKAGE "WHAT IS MISSING"
    echo "lineshaft: $2 is missing (Debian package $1)" >&2
    packages="$packages $1"
}
command -v "${cc##* }" >/dev/null 2>&1 || tell "${cc##* }" "the compiler \"${cc##* }\""
if ! command -v pkg-config >/dev/null 2>&1; then
    tell pkg-config "pkg-config, which finds the libraries,"
else
    # shellcheck disable=SC2086
    pkg-config --exists $libraries || for l in $libraries; do
        pkg-config --exists "$l" || tell "$(package_of "$l")" "the library \"$l\""
    done
fi
if [ -n "$packages" ]; then
    echo "lineshaft: run \"make deps\", or: apt-get install$packages" >&2
    exit 1
fi
$quiet && exit 0

# shellcheck disable=SC2086
echo "lineshaft: built by $($cc --version | head -n 1)"
# shellcheck disable=SC2086
echo "  libraries: $(for l in $libraries; do printf '%s %s, ' "${l#lib}" "$(pkg-config --modversion "$l")"; done | sed 's/, $//')"
case $(uname -m) in
x86_64) echo "  kernels: generic, AVX2 and AVX-512; the best one is chosen when the program starts" ;;
*) echo "  kernels: generic" ;;
esac
if command -v nvcc >/dev/null 2>&1; then
    echo "  cuda: nvcc is here; the plugin for NVIDIA GPUs is built too (device.kind: cuda trains on one)"
else
    echo "  cuda: no nvcc; the program computes on the CPU"
fi
