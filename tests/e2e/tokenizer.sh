#!/bin/sh
# From text to a tokenizer, to tokens, to a model that uses it; and what is refused on the way.
. "$LINESHAFT_ROOT/tests/lib.sh"

run 0 "$LINESHAFT" data tokenizer --train builtin:stories:300K --vocab 512 -o tok
says "tok: 512 tokens: 256 bytes, 255 merged, 1 special"
says "Next: lineshaft data build --tokenizer tok --out corpus.lst builtin:stories:300K"
[ "$(find tok -type f | sort | tr '\n' ' ')" = "tok/tokenizer.json tok/tokenizer_config.json " ] ||
    fail "the folder has $(find tok -type f)"
[ -z "$(ls -d ./*.tmp[.-]* 2>/dev/null)" ] || fail "a temporary folder is left"
python3 - <<'PY' || fail "tokenizer.json is not what it should be"
import json
t = json.load(open("tok/tokenizer.json"))
assert list(t) == ["version", "truncation", "padding", "added_tokens", "normalizer",
                   "pre_tokenizer", "post_processor", "decoder", "model"], list(t)
vocab, merges = t["model"]["vocab"], t["model"]["merges"]
assert sorted(vocab.values()) == list(range(511)) and len(merges) == 255
assert all(vocab[m.replace(" ", "")] == 256 + i for i, m in enumerate(merges))
assert t["added_tokens"][0]["id"] == 511
PY

# The same text gives the same files, as a plain and as a compressed file too.
"$LINESHAFT" data stories --bytes 100K >a.txt
gzip -k a.txt
run 0 "$LINESHAFT" data tokenizer --train a.txt --vocab 400 -o one
run 0 "$LINESHAFT" data tokenizer --train a.txt.gz --vocab 400 -o two
cmp one/tokenizer.json two/tokenizer.json || fail "two trainings differ"

# Bad input leaves nothing behind.
run 2 "$LINESHAFT" data tokenizer --train a.txt --vocab 400 -o one
says "not empty"
run 2 "$LINESHAFT" data tokenizer --train nowhere.txt --vocab 400 -o bad
run 2 "$LINESHAFT" data tokenizer --train 'nowhere/*.txt' --vocab 400 -o bad
says 'no file matches "nowhere/*.txt"'

# A pattern in quotes, as the run file has it.
mkdir some && cp a.txt some/a.txt && cp a.txt 'some/b[1].txt'
run 0 "$LINESHAFT" data tokenizer --train 'some/[ab].txt' --vocab 400 -o opened
cmp one/tokenizer.json opened/tokenizer.json || fail "a pattern names another text"
run 0 "$LINESHAFT" data tokenizer --train 'some/b[1].txt' --vocab 400 -o named
run 0 "$LINESHAFT" data build --out some.lst 'some/*.txt' --json
grep -q '"documents":2' out || fail "a pattern of two files makes: $(cat out)"
run 2 "$LINESHAFT" data tokenizer --train a.txt --vocab 100 -o bad
says "need 257"
mkdir not-one
printf '{}' >not-one/tokenizer.json
run 4 "$LINESHAFT" data tokenizer not-one
says "not-one"
[ ! -e bad ] || fail "a refused training left $(find bad)"

run 0 "$LINESHAFT" data tokenizer tok
says "byte-level BPE"
says "<|endoftext|> (511)"

# Exact round trip, from a file and from standard input, whole and line by line.
printf 'Once upon a time\r\n\n\t<|endoftext|>caf\303\251 \344\270\255 \360\237\231\202 12345  ' >b.txt
run 0 "$LINESHAFT" data encode --tokenizer tok b.txt
mv out ids
grep -qx 511 ids || fail "the special token was not found"
run 0 "$LINESHAFT" data decode --tokenizer tok ids
cmp out b.txt || fail "decoding does not give the text back"
"$LINESHAFT" data encode --tokenizer tok - <b.txt | cmp - ids || fail "standard input differs"
"$LINESHAFT" data encode --tokenizer tok --plain b.txt | grep -qx 511 && fail "--plain is not plain"
run 0 "$LINESHAFT" data encode --tokenizer tok --lines a.txt
[ "$(wc -l <out)" = "$(wc -l <a.txt)" ] || fail "not a line for each line"

# Tokens by that tokenizer, and a model on them.
run 0 "$LINESHAFT" data build --tokenizer tok --out corpus.lst a.txt
run 0 "$LINESHAFT" data inspect corpus.lst
says "512 ids"
small_run
run 0 "$LINESHAFT" train run.yaml --json --set data.tokenizer=tok --set train.steps=5
[ "$(field summary steps)" = 5 ] || fail "training with the new tokenizer did not end"
