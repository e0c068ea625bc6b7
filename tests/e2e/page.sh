#!/bin/sh
# page.sh -- the page of a run as a program sees it: served for a run folder, opened by train, as one file; who gets nothing; what
# happens to the run when the page is killed, and to the page when the run is.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
command -v curl >/dev/null || {
    echo "no curl here"
    exit 77
}
small_run
run 0 "$LINESHAFT" train run.yaml --json --set out=runs/a
field summary weights_hash >want
run 0 "$LINESHAFT" train run.yaml --json --set out=runs/b --set train.lr=1e-3 --set train.steps=20

# get STATUS URL [ARG...]: the answer is left in body and head.
get() {
    wanted=$1
    shift
    got=$(curl -s -m 20 -o body -D head -w '%{http_code}' "$@")
    [ "$got" = "$wanted" ] || fail "$got instead of $wanted: curl $* $(head -c 300 body)"
}
# serve ARG...: a page in the background; url, base (without the path) and token.
serve() {
    : >url
    "$LINESHAFT" page "$@" >url 2>err &
    page=$!
    eventually test -s url || fail "no address: $(cat err)"
    url=$(cat url) base=${url%%/\?*} token=${url##*token=}
}
# page_of FOLDER: the process that serves it for train; fails when there is none.
page_of() {
    for p in /proc/[0-9]*; do
        if tr '\0' ' ' <"$p/cmdline" 2>/dev/null | grep -q "page --until-eof -- $1 "; then
            echo "${p#/proc/}"
            return
        fi
    done
    return 1
}
no_page_of() { ! page_of "$1" >/dev/null; }

# --- a run that has ended ---
serve runs/a
case $base in http://127.0.0.1:*) ;; *) fail "not on loopback: $url" ;; esac
get 403 "$base/"
get 403 "$base/page?token=00000000000000000000000000000000"
get 403 "$url" -H "Host: evil.example"
get 403 "$base/stream?token=$token" -H "Origin: http://evil.example"
get 403 "$base/page?token=$token" -H "Sec-Fetch-Site: cross-site"
get 404 "$base/../../etc/passwd?token=$token" --path-as-is
get 405 "$base/page?token=$token" -X POST -d x
get 200 "$url" -c jar
grep -q '^Content-Security-Policy: .*frame-ancestors' head || fail "no policy: $(cat head)"
get 200 "$base/page.js" -b jar
get 200 "$base/page?with=b" -b jar
python3 - "$(cat want)" <<'PY' || fail "$(head -c 300 body)"
import json, sys
page = json.load(open("body"))
assert page["run"]["state"] == "finished" and page["run"]["steps"] == 40, page["run"]
assert page["run"]["weights_hash"] == sys.argv[1]
steps = [json.loads(line) for line in open("runs/a/events.jsonl") if '"event":"step"' in line]
loss = page["series"]["loss"]
assert loss["x"] == [s["step"] for s in steps] and all(abs(a - s["loss"]) <= 1e-6 * s["loss"] for a, s in zip(loss["m"], steps))
parts = [name for name in page["series"] if name.startswith("split.")]
assert len(parts) == 9, parts
for i, s in enumerate(steps):
    assert abs(sum(page["series"][p]["m"][i] for p in parts) - s["ms"]) < 1e-3 * s["ms"] + 1e-4
start = [e["e"] for e in page["events"] if e["e"]["event"] == "start"][0]
assert start["flops_per_token"] > 6 * start["parameters"] * 0.9
assert page["others"] == ["b"] and page["with"]["start"]["settings"]["train.lr"] == 0.001
PY
kill "$page"
wait "$page" || fail "the page ends otherwise: $(cat err)"

# --- one file; what it cannot show ---
run 0 "$LINESHAFT" page runs/a --html --with runs/b
grep -q '<meta http-equiv="Content-Security-Policy"' out || fail "no policy in the file"
grep -Eq 'https?://' out && fail "the file names other places: $(grep -Eo 'https?://[^ ]*' out | head -n 3)"
run 3 "$LINESHAFT" page nothing
says 'is no run folder'
run 2 "$LINESHAFT" page runs/a --listen 0.0.0.0:0
says 'is not shown at 0.0.0.0'
run 2 "$LINESHAFT" page runs/a --cert cert.pem
says 'needed together'

# --- TLS ---
if command -v openssl >/dev/null; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 2 \
        -subj /CN=page.test -addext subjectAltName=DNS:page.test >/dev/null 2>&1
    serve runs/a --cert cert.pem --key key.pem --host page.test
    port=${base##*:}
    get 200 "https://page.test:$port/page?token=$token" --cacert cert.pem --resolve "page.test:$port:127.0.0.1"
    get 403 "https://localhost:$port/page?token=$token" -k --resolve "localhost:$port:127.0.0.1"
    kill "$page"
    wait "$page"
fi

# --- train opens it: the stream follows, the bits are the same, and it ends with the run ---
"$LINESHAFT" train run.yaml --set train.steps=4000 --set out=live --page >live.out 2>live.err &
train=$!
eventually grep -q '^page    http' live.out || fail "train prints no address: $(cat live.out live.err)"
url=$(sed -n 's/^page    //p' live.out) base=${url%%/\?*} token=${url##*token=}
curl -sN -m 30 "$base/stream?token=$token" >stream &
reader=$!
eventually grep -q '^event: changes' stream || fail "nothing new in the stream: $(head -c 300 stream)"
page=$(page_of live) || fail "no process serves the page"
[ "$(ps -o ni= -p "$page" | tr -d ' ')" -ge 10 ] || fail "the page competes with the run"
kill -9 "$page"
wait $reader
kill -0 $train || fail "the run died with its page: $(cat live.err)"
kill -TERM $train
wait $train
[ $? = 130 ] || fail "the run ends otherwise: $(cat live.out live.err)"
run 0 "$LINESHAFT" train run.yaml --page --set out=same
says 'page    http'
[ "$(field summary weights_hash same/events.jsonl)" = "$(cat want)" ] || fail "the page changes bits"
eventually no_page_of same || fail "the page is left behind"

# kill -9 of the run: its page ends too. Several ranks: one page, by the process that was started.
"$LINESHAFT" train run.yaml --set train.steps=100000 --set out=two -n 2 --page >two.out 2>&1 &
train=$!
await_step two 3 $train
[ "$(grep -c '^page    http' two.out)" = 1 ] || fail "not one address: $(cat two.out)"
page_of two >/dev/null || fail "no process serves the page"
kill -9 $train
wait $train 2>/dev/null
eventually no_page_of two || fail "the page outlives the run"

# Without a person at a terminal there is none; JSON stays JSON, the address goes to standard error.
run 0 "$LINESHAFT" train run.yaml --set out=quiet
grep -q http out err && fail "a page that nobody asked for: $(cat out)"
run 0 "$LINESHAFT" train run.yaml --set out=json --json --page
python3 -c 'import json; [json.loads(line) for line in open("out")]' || fail "not JSON: $(head -n 2 out)"
grep -q '^page    http' err || fail "no address: $(cat err)"
# At a terminal there is one, unless --no-page.
if command -v script >/dev/null; then
    script -qec "$LINESHAFT train run.yaml --set out=seen" /dev/null </dev/null >seen.out 2>&1
    grep -q 'page    http' seen.out || fail "no page at a terminal: $(head -n 5 seen.out)"
    script -qec "$LINESHAFT train run.yaml --set out=unseen --no-page" /dev/null </dev/null >unseen.out 2>&1
    grep -q 'http' unseen.out && fail "--no-page opens one"
fi
exit 0
