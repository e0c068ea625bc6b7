"""llama2c.py CHECKPOINT TOKENIZER FOLDER -- a llama2.c checkpoint (version 1) as a Hugging Face folder.

CHECKPOINT: 256 bytes of header (magic, version, seven int32 sizes, a byte that says whether the
head is shared), then fp32 tensors: all attention norms, all MLP norms, the final norm, the embedding,
then wq, wk, wv, wo, w1, w2, w3 of all layers, and the head unless it is shared.
Its rotary embedding turns neighbours (0,1), (2,3) ...; Hugging Face's turns halves (0,D/2), (1,D/2+1)
...; so the rows of each head of wq and wk are brought from the first order into the second.

TOKENIZER: int32 longest piece, then for each token a float score, an int32 length and the bytes. It
holds SentencePiece's BPE: of all neighbours whose join is a piece, the one with the best score is
joined first. tokenizer.json ranks merges instead, so the merges are all ways to cut a piece into two
pieces, ranked by the score of the whole.
"""
import json, os, struct, sys
import numpy as np
from safetensors.numpy import save_file

SPACE = "\u2581"


def read_checkpoint(path):
    raw = open(path, "rb").read()
    magic, version = struct.unpack_from("<II", raw, 0)
    if magic != 0x616B3432 or version != 1:
        sys.exit("%s: not a checkpoint of llama2.c, version 1" % path)
    dim, hidden, layers, heads, kv_heads, vocab, context, shared = struct.unpack_from("<7iB", raw, 8)
    at = [256]

    def take(*shape):
        n = int(np.prod(shape))
        x = np.frombuffer(raw, "<f4", n, at[0]).reshape(shape)
        at[0] += 4 * n
        return x

    head_dim = dim // heads
    tensors = {
        "attention_norm": take(layers, dim), "mlp_norm": take(layers, dim), "norm": take(dim),
        "embed": take(vocab, dim),
        "wq": take(layers, dim, dim), "wk": take(layers, kv_heads * head_dim, dim),
        "wv": take(layers, kv_heads * head_dim, dim), "wo": take(layers, dim, dim),
        "w1": take(layers, hidden, dim), "w2": take(layers, dim, hidden), "w3": take(layers, hidden, dim)}
    if not shared:
        tensors["head"] = take(vocab, dim)
    if at[0] != len(raw):
        sys.exit("%s: %d bytes, but its header describes %d" % (path, len(raw), at[0]))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": dim,
        "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": vocab, "max_position_embeddings": context,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": False,
        "mlp_bias": False, "tie_word_embeddings": bool(shared), "bos_token_id": 1, "eos_token_id": 2,
        "torch_dtype": "float32"}
    return config, tensors


def halves(w, heads):
    """Rows of each head from neighbours to halves."""
    rows, cols = w.shape
    return w.reshape(heads, rows // heads // 2, 2, cols).transpose(0, 2, 1, 3).reshape(rows, cols)


def to_hf(config, t):
    out = {"model.embed_tokens.weight": t["embed"], "model.norm.weight": t["norm"]}
    if "head" in t:
        out["lm_head.weight"] = t["head"]
    for l in range(config["num_hidden_layers"]):
        at = "model.layers.%d." % l
        out[at + "input_layernorm.weight"] = t["attention_norm"][l]
        out[at + "post_attention_layernorm.weight"] = t["mlp_norm"][l]
        out[at + "self_attn.q_proj.weight"] = halves(t["wq"][l], config["num_attention_heads"])
        out[at + "self_attn.k_proj.weight"] = halves(t["wk"][l], config["num_key_value_heads"])
        out[at + "self_attn.v_proj.weight"] = t["wv"][l]
        out[at + "self_attn.o_proj.weight"] = t["wo"][l]
        out[at + "mlp.gate_proj.weight"] = t["w1"][l]
        out[at + "mlp.down_proj.weight"] = t["w2"][l]
        out[at + "mlp.up_proj.weight"] = t["w3"][l]
    return {name: np.ascontiguousarray(x) for name, x in out.items()}


def read_pieces(path, vocab):
    raw = open(path, "rb").read()
    pieces, at = [], 4
    for _ in range(vocab):
        score, n = struct.unpack_from("<fi", raw, at)
        pieces.append((raw[at + 8:at + 8 + n], score))
        at += 8 + n
    return pieces


def tokenizer_json(pieces):
    """Ids 0 <unk>, 1 <s>, 2 </s>, 3..258 the bytes, then pieces."""
    vocab, scores = {}, {}
    for i, (text, score) in enumerate(pieces):
        if i < 3:
            name = ("<unk>", "<s>", "</s>")[i]
        elif i < 259:
            name = "<0x%02X>" % (i - 3)
        else:
            name = text.decode("utf-8").replace(" ", SPACE)
            scores[name] = score
        if name in vocab:
            sys.exit("two pieces are \"%s\"" % name)
        vocab[name] = i
    merges = []
    for whole, score in scores.items():
        for cut in range(1, len(whole)):
            left, right = whole[:cut], whole[cut:]
            if left in scores and right in scores:
                merges.append((-score, vocab[whole], vocab[left], left, right))
    merges.sort()
    special = [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for i, name in enumerate(("<unk>", "<s>", "</s>"))]
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": SPACE},
            {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": "<s>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": vocab, "merges": ["%s %s" % (left, right) for _, _, _, left, right in merges]}}


def convert(checkpoint, tokenizer, folder):
    config, tensors = read_checkpoint(checkpoint)
    os.makedirs(folder, exist_ok=True)
    save_file(to_hf(config, tensors), os.path.join(folder, "model.safetensors"), {"format": "pt"})
    files = {"config.json": config,
             "tokenizer.json": tokenizer_json(read_pieces(tokenizer, config["vocab_size"])),
             "tokenizer_config.json": {
                 "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
                 "unk_token": "<unk>", "add_bos_token": True, "add_eos_token": False,
                 "clean_up_tokenization_spaces": False, "model_max_length": config["max_position_embeddings"]},
             "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2}}
    for name, value in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=False, indent=1)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    convert(*sys.argv[1:])
