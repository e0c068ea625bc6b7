/* fuzz_hfconfig.c -- bytes as config.json: what is read can be written, and reads back the same. */
#include "config/hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ls_hf_config a, b;
    ls_str text;

    if (ls_hf_config_read(&a, (const char *)data, size, "fuzz") != LS_OK)
        return 0;
    ls_str_init(&text);
    if (ls_hf_config_writable(&a.model) == LS_OK) {
        ls_hf_config_write(&a, &text);
        LS_BUG_IF(ls_str_status(&text) == LS_OK &&
                      ls_hf_config_read(&b, text.p, text.len, "again") != LS_OK,
                  "what was written cannot be read: %s", text.p);
        LS_BUG_IF(ls_str_status(&text) == LS_OK && (a.model.width != b.model.width ||
                                                    a.model.window_from != b.model.window_from),
                  "another model came back");
    }
    ls_str_release(&text);
    return 0;
}
