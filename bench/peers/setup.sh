#!/bin/sh
# setup.sh -- the Python environment that peers run in, outside the tree, made once and reused.
set -eu
home=${XDG_CACHE_HOME:-$HOME/.cache}/lineshaft/peers
[ -x "$home/bin/python" ] || python3 -m venv "$home"
"$home/bin/python" -c 'import torch, numpy' 2>/dev/null || "$home/bin/pip" install torch numpy
echo "peers: $("$home/bin/python" -c 'import torch; print("PyTorch", torch.__version__)')"
