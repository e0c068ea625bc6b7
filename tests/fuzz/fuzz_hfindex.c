/* fuzz_hfindex.c -- bytes as model.safetensors.index.json beside one small shard, and as the
 * fingerprint of a model. */
#include <string.h>
#include <sys/stat.h>
#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "hf/fingerprint.h"
#include "hf/hf_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void make_shard(void)
{
    static const char config[] =
        "{\"model_type\":\"gpt2\",\"vocab_size\":8,\"n_embd\":4,\"n_layer\":1,\"n_head\":2}";
    ls_safetensors_item item = {.name = "wte.weight", .type = LS_F32, .ndim = 2, .shape = {8, 4}};
    float zeros[32] = {0};
    ls_str file;

    ls_str_init(&file);
    if (mkdir("m", 0755) == 0 && ls_safetensors_layout(&item, 1, &file) == LS_OK) {
        ls_str_append_bytes(&file, zeros, sizeof zeros);
        (void)ls_file_write_atomic("m/a.safetensors", file.p, file.len);
        (void)ls_file_write_atomic("m/config.json", config, sizeof config - 1);
    }
    ls_str_release(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ls_hf_folder *f;
    ls_model m;
    ls_fingerprint print;

    (void)ls_fingerprint_parse(&print, (const char *)data, size, "fuzz");
    if (!ls_file_exists("m/config.json"))
        make_shard();
    if (ls_file_write_atomic("m/model.safetensors.index.json", data, size) != LS_OK ||
        ls_hf_folder_open(&f, "m", -1) != LS_OK)
        return 0;
    if (ls_model_init(&m, ls_hf_folder_run(f), 8) == LS_OK) {
        LS_BUG_IF(ls_hf_folder_check(f, &m) == LS_OK, "a model of one tensor");
        ls_model_release(&m);
    }
    ls_hf_folder_close(f);
    return 0;
}
