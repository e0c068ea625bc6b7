#!/bin/sh
# A pipe or a device where a file is named, a symbolic link where the program writes, and control characters in what a file
# says: a sentence at once.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
mkfifo pipe
ln -s pipe pipe.jsonl
ln -s /dev/zero endless.txt
ln -s /dev/zero endless.jsonl
escape=$(printf '\033')

# at_once ARG...: the program refuses by itself, with a sentence.
at_once() {
    run 3 timeout 30 "$LINESHAFT" "$@"
    says "not a plain file"
    says "hint:"
    [ ! -e o ] || fail "a refused run left $(find o)"
}

run 0 "$LINESHAFT" train run.yaml --set train.steps=10 --set out=trained
run 0 "$LINESHAFT" export trained hf
for bad in pipe endless.txt pipe.jsonl endless.jsonl; do
    at_once train $bad
    at_once config check $bad
    at_once train run.yaml --set data.text=$bad --set out=o
    at_once data build $bad -o shard.lst
    at_once data tokenizer --train --vocab 300 -o o $bad
    at_once data encode $bad --tokenizer bytes
    at_once generate trained --prompt-file $bad
    at_once eval trained --text $bad
    at_once eval trained --task $bad
done
at_once data chat pipe.jsonl
echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}' >chat.jsonl
mkfifo pipe.jinja
at_once data chat chat.jsonl --template pipe.jinja
for file in config.json model.safetensors tokenizer.json tokenizer_config.json generation_config.json special_tokens_map.json; do
    cp -r hf bad
    rm -f bad/$file
    mkfifo bad/$file
    at_once import bad o
    rm -r bad
done

# what a run folder holds
for file in run.lock checkpoints/lock checkpoints/generation; do
    cp -r trained bad
    rm bad/$file
    mkfifo bad/$file
    run 3 timeout 30 "$LINESHAFT" train run.yaml --set out=bad
    says "plain file"
    rm -r bad
done
cp -r trained bad
for object in bad/checkpoints/objects/*/*; do
    rm "$object"
    mkfifo "$object"
done
run 4 timeout 30 "$LINESHAFT" ckpt verify bad
says "is damaged"
rm -r bad

# standard input stays a pipe
printf 'ab' | "$LINESHAFT" data encode - --tokenizer bytes >out 2>err || fail "from a pipe: $(cat err)"
[ "$(tr '\n' ' ' <out)" = "97 98 " ] || fail "from a pipe: $(cat out)"
printf 'Once' | "$LINESHAFT" generate trained --prompt-file - --tokens 4 >out 2>err || fail "from a pipe: $(cat err)"

# nothing is written through a link
for file in events.jsonl run.lock checkpoints/lock; do
    cp -r trained linked
    echo "of somebody else" >target
    ln -sf "$PWD/target" linked/$file
    run 3 "$LINESHAFT" train run.yaml --set train.steps=10 --set out=linked
    says "linked/$file\" is a symbolic link"
    says "hint:"
    "$LINESHAFT" train run.yaml --set train.steps=10 --set out=linked --fresh >out 2>err # which may put the link aside
    [ "$(cat target)" = "of somebody else" ] || fail "linked/$file was written through: $(cat target)"
    rm -r linked
done

# a chat template, a file name and a key of JSON cannot command the terminal
printf '{{ raise_exception("\033[2J\033]0;title\007 gone") }}' >evil.jinja
run 4 "$LINESHAFT" data chat chat.jsonl --template evil.jinja
says '\x1b[2J\x1b]0;title\x07 gone'
! grep -q "$escape" out err || fail "an escape sequence was printed: $(cat -v out err)"
run 2 "$LINESHAFT" train "$(printf 'no\033[31mfile.yaml')"
says 'no\x1b[31mfile.yaml'
printf 'model: {"wi\033[8mdth": 3}\n' >evil.yaml
run 2 "$LINESHAFT" train evil.yaml
! grep -q "$escape" out err || fail "an escape sequence was printed: $(cat -v out err)"
