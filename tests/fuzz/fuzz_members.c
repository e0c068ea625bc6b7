/* fuzz_members.c -- any bytes as a list of members and as names of nodes: refused or taken, never
 * more than a list holds, and what was taken gives the same list again.
 *
 * Input: the bytes of a list; or, when the first is 0xff, names: a length, and that many bytes
 * behind what is known so far, again and again. */
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "cluster/member/roster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void drop_line(ls_log_level level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

static void list(const uint8_t *data, size_t size)
{
    ls_members_outline outline;
    ls_members m, again;
    ls_str bytes;
    bool good = ls_members_check(data, size, 0, &outline) == LS_OK;

    if (good != (ls_members_decode(&m, data, size) == LS_OK))
        abort();
    if (!good)
        return;
    if (m.nodes != outline.nodes || m.ranks != outline.ranks || m.node[0].ranks != outline.here)
        abort();
    ls_str_init(&bytes);
    ls_members_encode(&m, &bytes);
    if (ls_members_decode(&again, bytes.p, bytes.len) != LS_OK || again.nodes != m.nodes ||
        again.ranks != m.ranks || again.generation != m.generation)
        abort();
    for (int i = 0; i < m.nodes; i++)
        if (strcmp(m.node[i].host, again.node[i].host) != 0 ||
            strcmp(m.node[i].ip, again.node[i].ip) != 0 || m.node[i].ranks != again.node[i].ranks)
            abort();
    ls_str_release(&bytes);
    ls_members_release(&again);
    ls_members_release(&m);
}

static void names(const uint8_t *data, size_t size)
{
    ls_roster roster;

    ls_roster_init(&roster);
    while (size > 0) {
        size_t len = data[0] <= size - 1 ? data[0] : size - 1, before = roster.bytes.len;
        bool learned = ls_roster_learn(&roster, before, data + 1, len) == LS_OK;
        if (roster.bytes.len != before + (learned ? len : 0))
            abort();
        data += 1 + len;
        size -= 1 + len;
    }
    ls_roster_walk walk = {.in = {.at = (const uint8_t *)roster.bytes.p, .left = roster.bytes.len}};
    int nodes = 0;
    while (ls_roster_next(&walk))
        nodes++;
    if (walk.in.bad || nodes != roster.nodes)
        abort();
    ls_roster_release(&roster);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ls_log_set_sink(drop_line, NULL, LS_LOG_ERROR);
    if (size > 0 && data[0] == 0xff)
        names(data + 1, size - 1);
    else
        list(data, size);
    return 0;
}
