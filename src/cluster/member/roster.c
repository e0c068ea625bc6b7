/* roster.c -- see roster.h.
 *
 * Names of nodes are much alike: "node00041" after "node00040" is three bytes, of which one is the
 * digit. An address of the same network is as short.
 *
 *     node00040, 10.0.0.40     00 09 "node00040"   00 09 "10.0.0.40"
 *     node00041, 10.0.0.41     08 01 "1"           08 01 "1" */
#include "cluster/member/roster.h"

#include <string.h>

void ls_roster_init(ls_roster *roster)
{
    *roster = (ls_roster){.nodes = 0};
    ls_str_init(&roster->bytes);
}

void ls_roster_release(ls_roster *roster)
{
    ls_str_release(&roster->bytes);
    ls_roster_init(roster);
}

/* A text, and keep it as the one before. */
static void put(ls_str *out, char *before, const char *text)
{
    size_t keep = 0, len = strnlen(text, LS_MEMBERS_TEXT - 1);

    while (keep < len && before[keep] == text[keep])
        keep++;
    ls_wire_codec_put(out, keep, 1);
    ls_wire_codec_put(out, len - keep, 1);
    ls_str_append_bytes(out, text + keep, len - keep);
    memcpy(before + keep, text + keep, len - keep);
    before[len] = '\0';
}

ls_status ls_roster_add(ls_roster *roster, const char *host, const char *ip)
{
    put(&roster->bytes, roster->host, host);
    put(&roster->bytes, roster->ip, ip);
    roster->nodes++;
    return ls_str_status(&roster->bytes);
}

/* Lists of ten thousand are read again and again, so it is worth to look at each byte once. */
static void get(ls_wire_codec *in, char *text, size_t *len)
{
    size_t keep = in->left > 1 ? in->at[0] : 0, n = in->left > 1 ? in->at[1] : 0;
    uint8_t odd = 0;

    in->bad |= in->left < 2 + n || in->left < 2 || keep > *len || keep + n >= LS_MEMBERS_TEXT;
    if (in->bad)
        return;
    for (size_t i = 0; i < n; i++) { /* they end up on terminals */
        uint8_t c = in->at[2 + i];
        odd |= c < ' ' || c == 127;
        text[keep + i] = (char)c;
    }
    in->bad |= odd;
    *len = keep + n;
    text[*len] = '\0';
    in->at += 2 + n;
    in->left -= 2 + n;
}

bool ls_roster_next(ls_roster_walk *walk)
{
    if (walk->in.bad || walk->in.left == 0)
        return false;
    get(&walk->in, walk->host, &walk->host_len);
    get(&walk->in, walk->ip, &walk->ip_len);
    walk->in.bad |= walk->ip_len == 0;
    return !walk->in.bad;
}

/* The bytes are walked before they are kept: what is damaged, or does not begin where this roster ends,
 * changes nothing. */
ls_status ls_roster_learn(ls_roster *roster, size_t at, const void *bytes, size_t len)
{
    ls_roster_walk walk = {.in = {.at = bytes, .left = len}};
    int nodes = at == 0 ? 0 : roster->nodes;

    if (at != 0 && at != roster->bytes.len)
        return ls_fail(LS_EDATA, "names of nodes from byte %zu on, of which %zu are known", at,
                       roster->bytes.len);
    if (at != 0) {
        memcpy(walk.host, roster->host, sizeof walk.host);
        memcpy(walk.ip, roster->ip, sizeof walk.ip);
        walk.host_len = strlen(walk.host);
        walk.ip_len = strlen(walk.ip);
    }
    while (ls_roster_next(&walk))
        nodes++;
    if (walk.in.bad)
        return ls_fail(LS_EDATA, "names of nodes are damaged");
    ls_str_reserve(&roster->bytes, at + len + 1);
    if (roster->bytes.failed) {
        roster->bytes.failed = false; /* what was there still is */
        return LS_ENOMEM;
    }
    if (at == 0)
        ls_str_clear(&roster->bytes);
    ls_str_append_bytes(&roster->bytes, bytes, len);
    memcpy(roster->host, walk.host, sizeof walk.host);
    memcpy(roster->ip, walk.ip, sizeof walk.ip);
    roster->nodes = nodes;
    return LS_OK;
}
