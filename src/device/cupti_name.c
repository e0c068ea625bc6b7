/* cupti_name.c -- names of kernels that fit into a table.
 *
 *   void (anonymous namespace)::bwd_rows<__nv_bfloat16, 8>(float const*, long)
 *     -> bwd_rows<__nv_bfloat16, 8>
 *   cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_..._kernel0_0
 *     -> cudnn_generated_fort_native...kernel0_0
 *
 * Libraries tell versions of a kernel apart at the end of its name as well as at its begin. */
#include "device/cupti.h"

#include <ctype.h>

/* A copy that fits; of a longer one the middle is left out. */
static void fit(const char *text, size_t len, char short_out[LS_CUPTI_NAME])
{
    const size_t most = LS_CUPTI_NAME - 1, tail = 32;

    if (len <= most) {
        memcpy(short_out, text, len);
        short_out[len] = '\0';
        return;
    }
    memcpy(short_out, text, most - tail - 3);
    memcpy(short_out + most - tail - 3, "...", 3);
    memcpy(short_out + most - tail, text + len - tail, tail);
    short_out[most] = '\0';
}

/* Where the name ends: before the arguments, which are the first round bracket outside of template
 * brackets. "(anonymous namespace)" is part of a name. */
static size_t end_of_name(const char *name)
{
    static const char anonymous[] = "(anonymous namespace)";
    int depth = 0;
    size_t i = 0;

    for (; name[i]; i++) {
        if (strncmp(name + i, anonymous, sizeof anonymous - 1) == 0) {
            i += sizeof anonymous - 2;
            continue;
        }
        if (name[i] == '(' && depth == 0)
            break;
        depth += name[i] == '<';
        depth -= name[i] == '>' && depth > 0;
    }
    return i;
}

void ls_cupti_shorten(const char *name, char short_out[LS_CUPTI_NAME])
{
    char text[4096];
    static const char anonymous[] = "(anonymous namespace)::";
    size_t end = end_of_name(name), begin = 0, n = 0;
    int depth = 0;

    /* The return type, which only templates have, ends at the last space outside of brackets. */
    for (size_t i = 0; i < end; i++) {
        depth += name[i] == '<' || name[i] == '(';
        depth -= (name[i] == '>' || name[i] == ')') && depth > 0;
        if (name[i] == ' ' && depth == 0)
            begin = i + 1;
    }
    for (size_t i = begin; i < end && n < sizeof text; i++) {
        if (strncmp(name + i, anonymous, sizeof anonymous - 1) == 0)
            i += sizeof anonymous - 2;
        else
            text[n++] = name[i];
    }
    if (n == 0)
        fit(name, strlen(name), short_out);
    else
        fit(text, n, short_out);
}

/* _ZN12_GLOBAL__N_18bwd_rowsI13__nv_bfloat16Li8EEEvPKfl: pieces are a length and a name; the last
 * one before template arguments (I) or the end (E) is the innermost. */
void ls_cupti_unmangle(const char *mangled, char short_out[LS_CUPTI_NAME])
{
    const char *at = mangled, *name = NULL;
    size_t len = 0;

    if (strncmp(mangled, "_Z", 2) == 0) {
        at = mangled + 2;
        at += *at == 'N';
        at += *at == 'L'; /* a function of one file */
    }
    while (at != mangled && isdigit((unsigned char)*at)) {
        size_t n = 0;
        while (isdigit((unsigned char)*at) && n < 65536)
            n = n * 10 + (size_t)(*at++ - '0');
        if (n == 0 || strnlen(at, n) < n)
            break; /* no piece: keep what there was */
        name = at;
        len = n;
        at += n;
    }
    if (name)
        fit(name, len, short_out);
    else
        fit(mangled, strlen(mangled), short_out);
}
