/* config_digest.c -- a row for each thing that must be the same, and a comparison that names rows.
 *
 *     first node             a node that joins
 *     program  1f00c2        program  1f00c2
 *     train    88ab17        train    0c4d11     -> "train (88ab17 here, 0c4d11 there)"
 *     data     5e0931        data     5e0931
 *
 * Large files are compared by length and by their first and last MiB: reading terabytes of text before
 * a node may join would cost more than the mistake. The ranks compare a hash of all tokens again when
 * they read them (train/session/session_data.c). */
#include "cluster/member/config_digest.h"

#include "base/file.h"
#include "base/hash.h"

enum { END_BYTES = 1 << 20 };

static int find(const ls_config_digest *l, const char *name)
{
    for (int i = 0; i < l->rows; i++)
        if (strcmp(l->row[i].name, name) == 0)
            return i;
    return -1;
}

void ls_config_digest_add(ls_config_digest *config_digest, const char *name, const void *bytes,
                          size_t len)
{
    ls_config_digest *l = config_digest;
    int i = find(l, name);
    ls_hash hash = ls_hash_bytes(bytes, len);

    if (i < 0 && l->rows == LS_CONFIG_DIGEST_ROWS)
        return;
    if (i < 0) {
        i = l->rows++;
        snprintf(l->row[i].name, sizeof l->row[i].name, "%s", name);
        l->row[i].hash = 0;
    }
    const uint64_t both[2] = {l->row[i].hash, hash.lo ^ hash.hi};
    l->row[i].hash = ls_hash_bytes(both, sizeof both).lo;
}

void ls_config_digest_add_file(ls_config_digest *config_digest, const char *name, const char *path)
{
    ls_file_map map = {.bytes = NULL};

    if (ls_file_map_open(&map, path) != LS_OK) {
        map = (ls_file_map){.len = 0};
        ls_err_clear(); /* a file that is missing fails where it is needed, with a better message */
    }
    const uint64_t len = map.len;
    size_t part = map.len < END_BYTES ? map.len : END_BYTES;
    ls_config_digest_add(config_digest, name, &len, sizeof len);
    if (part > 0) {
        ls_config_digest_add(config_digest, name, map.bytes, part);
        ls_config_digest_add(config_digest, name, map.bytes + (map.len - part), part);
    }
    if (map.bytes)
        ls_file_map_close(&map);
}

void ls_config_digest_add_program(ls_config_digest *config_digest)
{
    ls_config_digest_add(config_digest, "program", LS_VERSION, sizeof LS_VERSION);
    ls_config_digest_add_file(config_digest, "program", "/proc/self/exe");
}

/* Six digits of a hash are enough to see that two lines of two logs speak of the same thing. Both
 * directions are looked at: a row that only one side has differs, too. */
bool ls_config_digest_same(const ls_config_digest *here, const ls_config_digest *there, char *why,
                           size_t cap)
{
    size_t n = 0;

    why[0] = '\0';
    for (int i = 0; i < here->rows; i++) {
        int k = find(there, here->row[i].name);
        uint64_t other = k < 0 ? 0 : there->row[k].hash;
        if (other == here->row[i].hash || n >= cap)
            continue;
        n += (size_t)snprintf(why + n, cap - n, "%s%s (%06llx here, %06llx there)", n ? ", " : "",
                              here->row[i].name, (unsigned long long)here->row[i].hash & 0xffffff,
                              (unsigned long long)other & 0xffffff);
    }
    for (int i = 0; i < there->rows; i++)
        if (find(here, there->row[i].name) < 0 && n < cap)
            n += (size_t)snprintf(why + n, cap - n, "%s%s (only there)", n ? ", " : "",
                                  there->row[i].name);
    return n == 0;
}

void ls_config_digest_encode(const ls_config_digest *config_digest, ls_str *out)
{
    ls_wire_codec_put(out, (uint64_t)config_digest->rows, 1);
    for (int i = 0; i < config_digest->rows; i++) {
        ls_wire_codec_put_text(out, config_digest->row[i].name);
        ls_wire_codec_put(out, config_digest->row[i].hash, 8);
    }
}

void ls_config_digest_decode(ls_config_digest *config_digest, ls_wire_codec *in)
{
    int rows = (int)ls_wire_codec_get(in, 1);

    config_digest->rows = 0;
    if (rows > LS_CONFIG_DIGEST_ROWS)
        in->bad = true;
    for (int i = 0; i < rows && !in->bad; i++) {
        ls_wire_codec_get_text(in, config_digest->row[i].name, LS_CONFIG_DIGEST_NAME);
        config_digest->row[i].hash = ls_wire_codec_get(in, 8);
        config_digest->rows += !in->bad;
    }
}
