#!/bin/sh
# setup.sh -- the Python environment that peers and conformance tests run in, outside the tree, made
# once and reused. Packages are fetched only when one cannot be imported. Prints where it is; fails,
# saying why, when it cannot be made (no network, no venv).
set -eu
home=${XDG_CACHE_HOME:-$HOME/.cache}/lineshaft/peers
python=$home/bin/python
packages="torch numpy transformers tokenizers safetensors peft jinja2 gguf lm_eval accelerate trl datasets"

can_import() {
    "$python" - $packages <<'PY'
import importlib.util, sys
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
sys.exit("missing: " + " ".join(missing) if missing else 0)
PY
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if [ ! -x "$python" ]; then
    if ! python3 -m venv "$home" >"$log" 2>&1; then
        tail -n 3 "$log" >&2
        echo "peers: python3 -m venv cannot make $home" >&2
        exit 1
    fi
fi
if ! can_import 2>"$log"; then
    echo "peers: $(cat "$log"); fetching into $home"
    # shellcheck disable=SC2086
    if ! "$python" -m pip install --quiet --retries 1 --timeout 20 $packages >"$log" 2>&1; then
        tail -n 3 "$log" >&2
        echo "peers: pip cannot fetch the packages into $home" >&2
        exit 1
    fi
fi
echo "peers: $("$python" -c 'import torch; print("PyTorch", torch.__version__)') in $home"
